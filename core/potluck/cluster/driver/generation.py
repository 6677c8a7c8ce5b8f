"""Tokens from a pipeline: sessions that outlive a request, prefill in chunks, one token at a time.

The driver keeps the token ids that each session's caches hold. The next turn of a conversation finds
the session that shares its longest prefix, trims the rest and prefills only what is new. A stage that
lost its cache says so (`need_replay`), and the tokens are sent again from there.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from potluck.cluster.driver.pipeline import PendingStep, Pipeline, Room
from potluck.errors import EngineError, NeedReplayError, PromptError, UnknownSessionError
from potluck.ids import SessionId
from potluck.wire.messages import MAX_HISTORY, Result, Sampling, TokenLogprob

CHUNK_TOKENS = 256  # of prefill, where no forecast says what is best
MAX_SESSIONS = 4  # conversations whose caches are kept; the stages' memory may hold fewer
_AHEAD = 2  # steps: one under way while its caller looks at a token, one that follows at once
_REPLAYS = 4  # a stage that loses its cache more often than this in one step is broken
_PATIENCE_S = 30.0  # for another answer to end; its reader may have stopped reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as the last stage chose it, with how long it took."""

    token_id: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    seconds: float  # since the step was sent
    compute_ms: tuple[float, ...]  # of each stage, in order


@dataclass(slots=True, kw_only=True)
class Usage:
    """What a request took from the caches; filled in before its first token."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Session:
    id: SessionId
    tokens: list[int] = field(
        default_factory=list
    )  # what the caches hold, or will when all is well
    step: int = 0
    busy: bool = False
    is_waiting: bool = False  # for another answer to end
    last_used: float = 0.0


def _with_history(sampling: Sampling, tokens: Sequence[int]) -> Sampling:
    """A repetition penalty looks back, and the stage with the head sees no token ids."""
    if sampling.repetition_penalty == 1.0:
        return sampling
    return msgspec.structs.replace(sampling, history=tuple(tokens[-MAX_HISTORY:]))


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


class Generator:
    """Generates on one pipeline, for several requests at a time."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        context: int,
        room: Room | None = None,
        chunk_tokens: Callable[[int], int] = lambda _: CHUNK_TOKENS,
        max_sessions: int = MAX_SESSIONS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a generator.

        Args:
            pipeline: that computes.
            context: tokens that a conversation has at most.
            room: of the computer that can hold the shortest one; None: all can hold the context.
            chunk_tokens: for a prompt of so many new tokens, how many are sent at once.
            max_sessions: conversations whose caches are kept.
            clock: seconds.
        """
        self.pipeline = pipeline
        self._room = room if room is not None and room.tokens < context else None
        self.context = context if self._room is None else self._room.tokens
        self._chunk_tokens = chunk_tokens
        self._max_sessions = max_sessions
        self._clock = clock
        self._sessions: list[_Session] = []
        self._turns = asyncio.Semaphore(max_sessions)
        self._an_end = asyncio.Event()  # of the next answer that ends

    async def tokens(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int,
        usage: Usage,
        stops: Collection[int] = (),
    ) -> AsyncGenerator[Token, None]:
        """Yield tokens after the prompt, up to `limit` or to one of the `stops`, which is the last.

        The pipeline goes on while the caller looks at a token. Closing the iterator ends the request.

        Raises:
            PromptError: the prompt is empty or does not fit the context with one token after it.
            PeerError: a computer of the pipeline was lost or is silent.
            EngineError: a stage cannot compute this.
        """
        self._check(prompt)
        usage.prompt_tokens = len(prompt)
        limit = min(limit, self.context - len(prompt))
        async with self._borrow(prompt) as session:
            # At least one token must run: the caches hold no logits.
            keep = min(_common_prefix(session.tokens, prompt), len(prompt) - 1)
            usage.cached_tokens = keep
            if keep < len(session.tokens):
                self.pipeline.trim(session.id, keep)
                del session.tokens[keep:]
            token = await self._advance(session, prompt[keep:], _with_history(sampling, prompt))
            ahead = _Ahead(self.pipeline, session, sampling, stops)
            try:
                for left in range(limit - 1, -1, -1):
                    ahead.go_on(left)
                    yield token
                    if token.token_id in stops:
                        return
                    if left:
                        token = await self._next(ahead, token)
            finally:
                ahead.stop()

    async def _next(self, ahead: "_Ahead", token: Token) -> Token:
        """The token after this one; sent again the usual way when a stage has lost its cache."""
        try:
            return await ahead.next()
        except (NeedReplayError, UnknownSessionError):
            ahead.give_up()
            # The stages before the one that lost it hold this token already.
            self.pipeline.trim(ahead.session.id, len(ahead.session.tokens))
            return await self._advance(ahead.session, [token.token_id], ahead.sampling)

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise PromptError("The prompt is empty: there is nothing to continue.")
        if self._room is not None and len(prompt) >= self.context:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens, and {self._room.name} has memory for the"
                f" cache of {self._room.tokens}. Shorten it, free memory there, or load the model"
                " anew in a smaller scheme.",
                tokens=len(prompt),
                context=self.context,
            )
        if len(prompt) >= self.context:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens and the context holds {self.context}."
                " Shorten it, start a new conversation, or load the model with a larger context.",
                tokens=len(prompt),
                context=self.context,
            )

    @asynccontextmanager
    async def _borrow(self, prompt: Sequence[int]) -> AsyncIterator[_Session]:
        """The session to run a prompt in, for this request alone."""
        async with self._turns:
            session = self._choose(prompt)
            session.busy = True
            try:
                yield session
            finally:
                session.busy = False
                session.last_used = self._clock()
                self._an_end.set()
                self._an_end = asyncio.Event()

    def _choose(self, prompt: Sequence[int]) -> _Session:
        """One that is not busy; fewer are than there may be."""
        free = [s for s in self._sessions if not s.busy]
        best = max(free, key=lambda s: _common_prefix(s.tokens, prompt), default=None)
        # A session that shares less than half of what it holds is another conversation: keep it.
        if best is not None and 2 * _common_prefix(best.tokens, prompt) >= len(best.tokens) > 0:
            return best
        if len(self._sessions) >= self._max_sessions:
            oldest = min(free, key=lambda s: s.last_used)
            self._sessions.remove(oldest)
            self.pipeline.close(oldest.id)
        session = _Session(SessionId(secrets.token_hex(8)))
        self._sessions.append(session)
        self.pipeline.open(session.id)
        return session

    async def _advance(self, session: _Session, new: Sequence[int], sampling: Sampling) -> Token:
        """Append tokens to a session and choose the next, replaying what a stage has lost."""
        started = self._clock()
        start = len(session.tokens)
        session.tokens.extend(new)
        alone = 0  # times that it was lost with nobody to make room for
        while alone < _REPLAYS:
            is_unknown = False
            try:
                result = await self._run(session, start, sampling)
            except UnknownSessionError:
                start, is_unknown = 0, True
            except NeedReplayError as error:
                position = error.data.get("position")
                start = min(start, position) if isinstance(position, int) else 0
            else:
                return _token(result, self._clock() - started)
            alone += not await self._let_another_end(session)
            if is_unknown:
                self.pipeline.open(session.id)
            self.pipeline.trim(session.id, start)
            sampling = _with_history(sampling, session.tokens)
        raise EngineError("A computer keeps losing this conversation's cache. Try a new one.")

    async def _let_another_end(self, session: _Session) -> bool:
        """Wait before a lost cache is computed again, in case another conversation took its place.

        Two under way that do not fit together would push each other out at every token.

        Returns:
            Whether there was one to wait for: somebody always goes on.
        """
        if not any(s.busy and not s.is_waiting for s in self._sessions if s is not session):
            return False
        session.is_waiting = True
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._an_end.wait()
        except TimeoutError:
            pass
        finally:
            session.is_waiting = False
        return True

    async def _run(self, session: _Session, start: int, sampling: Sampling) -> Result:
        """Send `session.tokens[start:]` in chunks, as many under way as keep every stage busy."""
        under_way: deque[PendingStep] = deque()
        result: Result | None = None
        try:
            size = self._chunk_tokens(len(session.tokens) - start)
            for begin in range(start, len(session.tokens), size):
                chunk = session.tokens[begin : begin + size]
                is_last = begin + len(chunk) == len(session.tokens)
                session.step += 1
                under_way.append(
                    self.pipeline.start_step(
                        session.id,
                        step=session.step,
                        position=begin,
                        tokens=chunk,
                        prompt_end=None if is_last else len(session.tokens),
                        sampling=sampling if is_last else None,
                    )
                )
                while len(under_way) > self.pipeline.stages or (is_last and under_way):
                    result = (await under_way[0].future).result
                    under_way.popleft()
        finally:
            for step in under_way:  # the first failure is enough; the rest follow from it
                self.pipeline.give_up(step)
        assert result is not None
        return result


class _Ahead:
    """The steps that follow a token, asked for before the token is known."""

    def __init__(
        self,
        pipeline: Pipeline,
        session: _Session,
        sampling: Sampling,
        stops: Collection[int],
    ) -> None:
        self.session = session
        self.sampling = sampling
        self._pipeline = pipeline
        self._stops = stops
        self._steps: deque[PendingStep] = deque()

    def go_on(self, left: int) -> None:
        """Ask for the next steps, at most so many."""
        while len(self._steps) < min(_AHEAD, left):
            self.session.step += 1
            step = self._pipeline.follow(
                self.session.id, step=self.session.step, sampling=self.sampling, stops=self._stops
            )
            self._steps.append(step)

    async def next(self) -> Token:
        """The token of the next step."""
        step = self._steps[0]
        arrived = await step.future
        assert step.token is not None
        self._steps.popleft()
        self.session.tokens.append(step.token)
        return _token(arrived.result, arrived.seconds)

    def give_up(self) -> list[int]:
        """Wait for nothing more; the tokens that were sent already."""
        steps = list(self._steps)
        self._steps.clear()
        for step in steps:
            self._pipeline.give_up(step)
        return [step.token for step in steps if step.token is not None]

    def stop(self) -> None:
        """The same, with what was sent in the session, whose caches it will be in."""
        self.session.tokens.extend(self.give_up())


def _token(result: Result, seconds: float) -> Token:
    assert result.token_id is not None
    return Token(
        token_id=result.token_id,
        logprob=result.logprob,
        top=result.top,
        seconds=seconds,
        compute_ms=result.compute_ms,
    )
