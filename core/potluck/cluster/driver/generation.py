"""Tokens from whichever pipelines are attached: prompts in chunks, then one token at a time.

The next turn of a conversation finds its `Conversation`, whose caches have all tokens but the new
ones. A prompt that only begins like another conversation gets a copy of its caches so far. When a stage has lost its caches (`need_replay`), or
another pipeline is attached, the missing tokens are sent again, and the answer goes on where it
was. Of several replicas of the model, each answer runs on one (`places.py`), and goes on on another one if that is lost.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing

from potluck.api.events import Progress, Reading
from potluck.cluster.driver.attached import Attached
from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.grammar import Grammar
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pictures import NO_PICTURES, Pictures
from potluck.cluster.driver.pipelines import Pipelines
from potluck.cluster.driver.prompt import PromptPace
from potluck.cluster.driver.steps_ahead import StepsAhead
from potluck.cluster.driver.token import Token, Usage, token_of
from potluck.cluster.driver.turns import Turn, Turns
from potluck.cluster.driver.viewer import Looking
from potluck.cluster.loss import CACHE_LOST, lost_too_often
from potluck.errors import (
    PotluckError,
    UnknownSessionError,
)
from potluck.wire.activation_messages import Result, Sampling

READING_S = 0.5  # between two events that say how much of a prompt is read

_LIMITS = AnswerLimits()


class Generator(Pipelines):
    """Answers prompts with one model, several at a time, on the pipelines that are attached."""

    def __init__(
        self,
        *,
        recover: Callable[[], Awaitable[None]] | None = None,
        limits: AnswerLimits = _LIMITS,
        clock: Callable[[], float] = time.perf_counter,
        queue_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a generator without a pipeline.

        Args:
            recover: called by each answer whose pipeline broke. It returns when another pipeline is
                attached, or raises the error why there is none. None: answers end with what broke
                their pipeline.
            limits: how much is under way at once, and how long is waited.
            clock: seconds.
            queue_changed: called when another number of requests wait.
        """
        turns = Turns(
            limits.conversations, clock, idle_s=limits.other_answer_s, changed=queue_changed
        )
        super().__init__(recover, limits, turns)
        self._clock = clock
        self._pace = PromptPace()

    async def tokens(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int | None = None,
        usage: Usage,
        stops: Collection[int] = (),
        known: Sequence[int] = (),
        guesses: bool = False,
    ) -> AsyncGenerator[Token, None]:
        """Yield the tokens of `answer` alone, without guesses unless they are wanted: each in its own step."""
        events = self.answer(
            prompt,
            sampling,
            limit=limit,
            usage=usage,
            stops=stops,
            known=known,
            guesses=guesses,
        )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Token):
                    yield event

    async def answer(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int | None = None,
        usage: Usage,
        stops: Collection[int] = (),
        known: Sequence[int] = (),
        grammar: Grammar | None = None,
        is_scored: bool = False,
        is_kept: bool = True,
        pictures: Pictures = NO_PICTURES,
        guesses: bool = True,
    ) -> AsyncGenerator[Token | Progress, None]:
        """Yield tokens after the prompt, up to `limit` or to one of the `stops`, which is the last.

        Before them come the places in the queue, if there are too many answers under way, and how much of
        the prompt is read. Both come again if its caches had to make room for others, or were lost.

        The pipeline goes on while the caller looks at a token. Closing the iterator ends the
        request.

        Args:
            prompt: token ids.
            sampling: how tokens are chosen.
            limit: most tokens, at least 1; None: as many as the context has room for.
            usage: filled in before the first token.
            stops: token ids that end the answer.
            known: the first tokens of the answer, which were given out before.
            grammar: what the answer has to follow, in its state after the known tokens; None: anything.
            is_scored: whether the log-probabilities of the prompt's tokens are wanted in `usage`.
            is_kept: whether another prompt may go on with it.
            pictures: of the prompt.
            guesses: whether tokens may be guessed, which changes none of them.

        Raises:
            GrammarError: the grammar costs too much.
            PromptError: the prompt is empty or does not fit the context with one token after it.
            PeerError: a computer of the pipeline was lost or is silent, and no other pipeline came.
            EngineError: a stage cannot compute this.
        """
        prompt = pictures.tokens or prompt
        (await self._working()).check(prompt)
        usage.prompt_tokens = len(prompt)
        with self.turns.turn() as turn:
            while (waiting := await turn.come()) is not None:
                yield waiting
            conversation = await self._borrow(prompt, turn)
            ahead = StepsAhead(conversation, self._limits.steps_ahead)
            try:
                await conversation.settled()
                usage.cached_tokens = conversation.begin_answer(
                    prompt,
                    sampling,
                    limit=limit,
                    stops=stops,
                    grammar=grammar,
                    is_scored=is_scored,
                    pictures=pictures,
                    guesses=guesses,
                )
                usage.scores = conversation.scores
                left, is_computed = 1, False
                while left > 0:
                    token: Token | None = None
                    async with aclosing(self._next(ahead, turn)) as events:
                        async for event in events:
                            if isinstance(event, Token):
                                token = event
                            else:
                                yield event
                    assert token is not None
                    if not is_computed:
                        # The prompt now: what ends a stage may overtake the end of the answer.
                        if is_kept:
                            conversation.keep()
                        usage.cached_tokens = max(usage.cached_tokens, conversation.restored)
                        is_computed = True
                        if known:
                            left = conversation.recall(known)
                            continue
                    left = conversation.give_out(token.token_id)
                    if left > 0 and grammar is not None:
                        await grammar.push([token.token_id])
                        left = 0 if grammar.is_over else left
                    if left > 0:
                        turn.goes_on()
                        ahead.ask(left)
                    yield token
            finally:
                ahead.stop()
                self._end(conversation, is_kept=is_kept)

    def _end(self, conversation: Conversation, *, is_kept: bool) -> None:
        """End the answer in a conversation, which another prompt may go on with if it is kept."""
        conversation.forget_unsent()
        if is_kept:
            conversation.keep()
        else:
            self._conversations.drop(conversation)
        self._bringing.forget(conversation)
        conversation.turn, conversation.last_used = None, self._clock()
        conversation.pictures = NO_PICTURES  # megabytes, which come again with the next prompt
        self._tell()

    async def _borrow(self, prompt: Sequence[int], turn: Turn) -> Conversation:
        """The conversation in which a prompt is answered; no other request uses it meanwhile.

        Turns ensure that there is one that is not used, or room for one. While another answer
        computes the beginning of this prompt, this waits for it.
        """
        while True:
            await self._working()
            place = self._places.choose(prompt, self._conversations)
            if not self._conversations.is_being_computed(prompt, place.pipeline):
                break
            await self._advanced.wait()
        conversation = self._conversations.choose(prompt, place.pipeline)
        if conversation.pipeline is not place.pipeline:
            conversation.enter(place.pipeline, place.context)
        conversation.turn = turn
        return conversation

    async def _next(self, ahead: StepsAhead, turn: Turn) -> AsyncGenerator[Token | Progress, None]:
        """Yield the next token: that of a step that was asked for, else all that is not cached is computed.

        When caches or the pipeline are lost meanwhile, what is missing is computed again. Before that
        come the places in the queue, if the caches had to make room for others.
        """
        conversation, started = ahead.conversation, self._clock()
        error: PotluckError | None = None
        if ahead.is_asked:
            try:
                token = await ahead.next()
            except PotluckError as failure:
                ahead.give_up()
                error = failure
            else:
                self._pace.note_token(token.seconds)
                yield token
                return
        losses = 0
        while True:
            if error is not None:
                if self._gives_way(conversation, turn, error):
                    while (waiting := await turn.come()) is not None:
                        yield waiting
                else:
                    losses += 1
                await self._prepare(conversation, error)
                if losses == self._limits.losses:
                    raise lost_too_often(error)
            try:
                async with aclosing(self._run(conversation)) as events:
                    async for event in events:
                        if isinstance(event, Reading):
                            yield event
                        else:
                            yield token_of(event, self._clock() - started)
                            return
            except PotluckError as failure:
                error = failure

    def _gives_way(self, conversation: Conversation, turn: Turn, error: PotluckError) -> bool:
        """Have a conversation wait for its turn if its caches made room for another answer.

        If not, its step failed by a loss that no other answer can have caused.
        """
        if not isinstance(error, CACHE_LOST) or conversation.is_rewound:
            return False
        self._tell()  # who waits for what it was computing does not any more
        return turn.give_way()

    async def _prepare(self, conversation: Conversation, error: PotluckError) -> None:
        """Prepare a conversation whose step failed to be run again.

        Raises:
            PotluckError: the error, if it would come again; why there is no pipeline.
        """
        # Whatever is pending when a pipeline breaks fails with the very error that broke it.
        if conversation.pipeline is not None and error is conversation.pipeline.broken:
            await self._working()
            return
        if not isinstance(error, CACHE_LOST):
            raise error
        position = error.data.get("position")
        is_evicted = not position and not conversation.is_rewound
        # One that is rewound was trimmed further back than a layer with a window can go.
        conversation.is_rewound = False
        if isinstance(error, UnknownSessionError) or (is_evicted and conversation.keeps_caches):
            conversation.open()  # what was evicted may be on disk
        else:
            conversation.rewind(position if isinstance(position, int) else 0)

    async def _run(self, conversation: Conversation) -> AsyncGenerator[Reading | Result, None]:
        """Compute the tokens that are not cached, in chunks; the last one's result comes last."""
        bringing = self._bringing.of(conversation)
        awaiting = None if bringing is None else bringing.pipeline
        place = self._places.of(conversation.pipeline) or self._places.of(awaiting)
        if place is None:  # the one at the beginning is lost
            place = self._places.choose(conversation.tokens, self._conversations)
        pipeline = place.pipeline
        place.check(conversation.tokens)
        if conversation.pipeline is not pipeline:
            if bringing is not None and pipeline is awaiting:
                await bringing.enter(conversation)
            else:
                conversation.enter(pipeline, place.context)
        conversation.choose_rope()
        if conversation.may_restore:
            await conversation.restore()
        reader = place.reader
        if reader is not None and reader.takes(conversation):
            async with aclosing(reader.read(conversation)) as progress:
                async for reading in progress:
                    yield reading
        end = len(conversation.tokens)
        under_way: deque[tuple[PendingStep, int, int]] = deque()  # with tokens and positions
        looking, told = Looking(place.viewer, conversation), float("-inf")
        try:
            while True:
                if (now := self._clock()) >= told + READING_S:
                    told = now
                    yield Reading(tokens=conversation.arrived, total=end)
                while conversation.cached < end and len(under_way) < self._limits.under_way(
                    pipeline.stages, is_token=conversation.repeats_a_token
                ):
                    before, size = (
                        conversation.cached,
                        self._step_size(conversation, place),
                    )
                    if not await looking.may_send(size, can_wait=not under_way):
                        break
                    step = conversation.send_step(size)
                    under_way.append((step, conversation.cached - before, before))
                result = (await under_way[0][0].future).result
                _, tokens, before = under_way.popleft()
                conversation.arrived = before + tokens
                conversation.take_scores(before, result.scores)
                self._pace.note_chunk(tokens, result.compute_ms)
                self.turns.goes_on()
                self._tell()
                if not under_way and conversation.cached >= end:
                    yield result
                    return
        except (
            asyncio.CancelledError,
            GeneratorExit,
        ):  # the stages drop what they have not computed yet
            if under_way and pipeline.broken is None:
                conversation.rewind(under_way[0][2])
            raise
        finally:
            looking.stop()
            for step, *_ in under_way:  # the first failure is enough; the rest follow from it
                pipeline.give_up(step)

    def _step_size(self, conversation: Conversation, attached: Attached) -> int:
        """Most tokens of a step.

        It stays the same for an answer, whatever pipelines it runs on and whoever else is answered, unless
        its results do not depend on it.
        """
        if attached.pipeline.is_exact_in_chunks:
            size = attached.chunk_tokens(len(conversation.tokens) - conversation.cached)
            has_others = any(c.is_decoding for c in self._conversations if c is not conversation)
            return self._pace.beside_others(size) if has_others else size
        if conversation.chunk_tokens is None:
            new = len(conversation.tokens) - max(conversation.cached, conversation.computed.end)
            conversation.chunk_tokens = attached.chunk_tokens(new)
        return conversation.chunk_tokens
