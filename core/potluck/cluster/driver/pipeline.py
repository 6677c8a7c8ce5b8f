"""The driver's two ends of a chain of stages: steps enter the first, results leave the last.

Every message enters at the first stage, and the stages handle messages in order, so a trim always
takes effect after the steps that were sent before it. A stage reports a step that it cannot do over
the control connection, because the chain itself may be what broke.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from potluck.cluster.driver.pending import PendingStep, PendingSteps, StepResult, token_payload
from potluck.cluster.driver.token_times import TokenTimes
from potluck.cluster.loss import computer_lost
from potluck.errors import (
    EngineError,
    InvalidStepError,
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    PromptError,
    UnknownSessionError,
    rebuild,
)
from potluck.ids import SessionId
from potluck.model.mixing.rope import Stretches
from potluck.wire.activation_messages import (
    Attach,
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    Result,
    Sampling,
    Scoring,
    StepPictures,
    TensorHeader,
    TrimSession,
)
from potluck.wire.cache_messages import ExpectCache, ForgetBefore, SendCache, TakeCache
from potluck.wire.messages import Error, Message, NodeInfo, StepFailed
from potluck.wire.picture_messages import GiveRows, ShowPicture

logger = logging.getLogger(__name__)

_ROWS_AS_CHUNK = 512  # of a picture, which the slowest computer reads in `SILENCE_S`
SILENCE_S = 180.0  # for one chunk on the slowest computer; heartbeats notice a lost one earlier

_ONE_STRETCH = Stretches()  # of most models

# These errors end one step. Any other error of a stage breaks the pipeline.
_PASSING = (
    NeedReplayError,
    UnknownSessionError,
    OutOfMemoryError,
    PromptError,
    InvalidStepError,
)


class ActivationLink(Protocol):
    """What a pipeline needs of a connection. All but `wait_closed` may be called in any thread."""

    @property
    def peer(self) -> NodeInfo: ...
    def send_nowait(self, message: Message, payload: bytes = b"") -> None: ...
    def deliver_to(self, receiver: Callable[[Message, memoryview], None]) -> None:
        """Call `receiver` with each message from now on, in the thread that receives it."""
        ...

    async def wait_closed(self) -> None: ...
    def close(self) -> None: ...


class Pipeline:
    """The stages of one plan, as their driver sees them.

    A chosen token is sent back in by the thread that received it, before the event loop sees it, if
    the step that follows was asked for: see `follow`.

    No method raises an error of a stage or of a connection: a step fails at its `future`. A
    pipeline that is broken stays broken. A `Generator` then goes on with another one.

    Attributes:
        times: how long the tokens take that it computes.
        sent_tokens: how many tokens the stages were given to compute.
    """

    def __init__(
        self,
        *,
        epoch: int,
        first: ActivationLink,
        last: ActivationLink,
        stages: int,
        is_exact_in_chunks: bool = False,
        keeps_sessions: bool = False,
        stretches: Stretches = _ONE_STRETCH,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a pipeline; `run` starts it.

        Args:
            epoch: number of the plan.
            first: connection to the first stage.
            last: connection to the last stage; the same one where that is the first stage.
            stages: how many there are.
            is_exact_in_chunks: whether results have the same bits however tokens are cut into
                steps. Else only the same steps give the same answer again.
            keeps_sessions: whether all stages keep caches on disk.
            stretches: which rotary frequencies the model has for a session of some length.
            silence_s: the pipeline breaks when nothing is heard of it for so long, although steps
                are under way the whole time.
            clock: seconds.
        """
        self.epoch = epoch
        self.stages = stages
        self.times = TokenTimes(stages)
        self.sent_tokens = 0
        self.is_exact_in_chunks = is_exact_in_chunks
        self.keeps_sessions = keeps_sessions
        self.stretches = stretches
        self._first = first
        self._last = last
        self._silence_s = silence_s
        self._clock = clock
        self._heard = clock()  # the last sign of life of a stage
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards the steps, and the order of what is sent
        self._steps = PendingSteps()
        self._broken: PotluckError | None = None
        self._failed = asyncio.Event()
        self._is_draining = False
        self._ended = asyncio.Event()  # a step has

    @property
    def broken(self) -> PotluckError | None:
        """Why no step can run any more; None: steps can run."""
        return self._broken

    @property
    def sends(self) -> bool:
        """Whether what it is given goes to the stages: it is neither broken nor drained."""
        return self._broken is None and not self._is_draining

    async def wait_broken(self) -> None:
        """Wait until no step can run any more, also if all connections are still there."""
        await self._failed.wait()

    async def run(self) -> None:
        """Receive results until a connection ends or the stages are silent; then fail all steps."""
        links = {self._first, self._last}
        for link in links:
            link.deliver_to(self._receive)
        try:
            self._last.send_nowait(Attach(epoch=self.epoch))
            async with asyncio.TaskGroup() as tasks:
                for link in links:
                    tasks.create_task(_until_lost(link))
                tasks.create_task(self._until_silent())
        except* PotluckError as errors:
            error = errors.exceptions[0]
            assert isinstance(error, PotluckError)
            self.fail(error)

    async def drain(self, limit_s: float) -> None:
        """Send nothing any more, and wait until the steps under way have ended: then all stages have the same tokens.

        After the limit it is no longer waited for. Steps that were not sent wait until the pipeline is shut.
        """
        with self._lock:
            self._send_fed()
            self._is_draining, self._steps.feeds = True, False
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._broken is None and self._has_sent:
                    self._ended.clear()
                    await self._ended.wait()

    @property
    def _has_sent(self) -> bool:
        with self._lock:
            return self._steps.first_sent() is not None

    def shut(self) -> None:
        """Fail the steps that are pending and close both connections, which ends `run`."""
        self.fail(PeerLostError("The model was unloaded while it was answering."))
        self._first.close()
        self._last.close()

    def fail(self, error: PotluckError) -> None:
        """Break the pipeline: every pending step ends with this error."""
        self._broken = self._broken or error
        self._failed.set()
        self._ended.set()
        with self._lock:
            pending = self._steps.remove_all()
        for step in pending:
            if not step.future.done():
                step.future.set_exception(self._broken)

    async def _until_silent(self) -> None:
        """Wait until nothing was heard for too long.

        The silence of the whole pipeline counts, and not the age of one step: a step may wait for a
        long time behind the steps of other sessions, whose results keep coming.

        Raises:
            PeerTimeoutError: always.
        """
        while (left := self._silence_left()) > 0:  # noqa: ASYNC110, no event per result: too slow
            await asyncio.sleep(left)
        raise PeerTimeoutError(
            f"Nothing came from the computers for {self._silence_s:.0f} seconds, although there was"
            " something to compute all the time. The answers under way were stopped; try again."
        )

    def _silence_left(self) -> float:
        """Seconds after which the silence is too long if it lasts."""
        with self._lock:
            sent = self._steps.first_sent()
        if sent is None:
            return self._silence_s
        return max(self._heard, sent) + self._silence_s - self._clock()

    # --- in the thread that receives

    def _receive(self, message: Message, _: memoryview) -> None:
        match message:
            case Result() if message.epoch == self.epoch:
                self._take(message)
            case Error():
                error = EngineError(message.message, kind=message.kind)
                self._loop.call_soon_threadsafe(self.fail, error)
            case _:
                logger.debug("driver ignores a message op=%s", type(message).__name__)

    def _take(self, result: Result) -> None:
        now = self._clock()
        self._heard = max(self._heard, now)
        with self._lock:
            step = self._steps.take(result, now)
            if step is not None and step.token is not None and self._steps.are_of(result.session):
                self.times.note(step.seconds(now), result.compute_ms)
            if not result.more:
                self._send_fed()
        if step is not None:
            arrived = StepResult(result, step.seconds(now))
            self._loop.call_soon_threadsafe(self._set_result, step.future, arrived)

    def _send_fed(self) -> None:
        """Send the tokens whose results came together at once, so that they stay together."""
        fed = self._steps.take_fed()
        for more, (step, position) in zip(reversed(range(len(fed))), fed, strict=True):
            assert step.token is not None
            self._forward(step, position, [step.token], more)

    # --- steps

    def step_failed(self, failure: StepFailed) -> None:
        """End a step that a stage could not do; break the pipeline if other steps fail as well."""
        if failure.epoch != self.epoch:
            return
        self._heard = self._clock()
        data = {"position": failure.position}
        error = rebuild(failure.kind, failure.message, data, default=EngineError)
        if not isinstance(error, _PASSING):
            self.fail(error)
            return
        with self._lock:
            step = self._steps.remove(failure.session, failure.step)
        if step is not None and not step.future.done():
            step.future.set_exception(error)
        self._ended.set()

    def _set_result(self, future: "asyncio.Future[StepResult]", result: StepResult) -> None:
        self._ended.set()
        if not future.done():
            future.set_result(result)

    def open(
        self, session: SessionId, *, source: SessionId | None = None, position: int = 0
    ) -> None:
        """Make caches for the session, in place of those that it has.

        Args:
            session: whose caches.
            source: a session with which it shares its beginning. None: they are empty.
            position: how many tokens of `source` they hold. All stages must have computed these.
        """
        message = OpenSession(epoch=self.epoch, session=session, source=source, position=position)
        self._send(message)

    def trim(self, session: SessionId, position: int) -> None:
        """Have every stage forget what it has cached from this position on."""
        self._send(TrimSession(epoch=self.epoch, session=session, position=position))

    def close(self, session: SessionId) -> None:
        """Free the session's caches."""
        with self._lock:
            self._steps.forget(session)
        self._send(CloseSession(epoch=self.epoch, session=session))

    def keep(self, session: SessionId, prefix: bytes) -> None:
        """Tell the stages the digests of the tokens that are in the caches, which can then be kept on disk."""
        self._send(KeepSession(epoch=self.epoch, session=session, prefix=prefix))

    def ask(self, message: RestoreSession | ExpectCache | TakeCache) -> PendingStep:
        """Send what all stages do one after the other, and what the last one answers as it answers a step.

        Returns:
            A step whose result has the position that all stages have reached. Some may be beyond it.
        """
        pending = self._new_step(SessionId(message.session), message.step, None)
        if self._broken is None:
            with self._lock:
                pending.sent = None if self._is_draining else self._clock()
                self._steps.add(pending)
            self._send(message)
        return pending

    def tell(self, message: SendCache | ForgetBefore) -> None:
        """Send what no stage answers."""
        self._send(message)

    def _send(self, message: Message, payload: bytes = b"") -> None:
        if self.sends:
            with self._lock, suppress(PeerLostError):  # `run` notices it too
                self._send_fed()  # which were before it
                self._first.send_nowait(message, payload)

    def send_picture(
        self, message: ShowPicture | GiveRows, payload: bytes, *, rows: int = 0
    ) -> None:
        """Send what a later step needs of a picture to the first stage, whose tower makes so many rows of it."""
        self._send(message, payload)
        # The slowest computer reads a large picture for longer than a chunk.
        longer = self._silence_s * max(0.0, rows / _ROWS_AS_CHUNK - 1)
        self._heard = max(self._heard, self._clock() + longer)

    def start_step(
        self,
        session: SessionId,
        *,
        step: int,
        position: int,
        tokens: Sequence[int],
        prompt_end: int | None = None,
        sampling: Sampling | None,
        scoring: Scoring | None = None,
        pictures: StepPictures | None = None,
    ) -> PendingStep:
        """Send tokens to the first stage.

        Args:
            session: whose caches they go into.
            step: number of the step, which is greater than that of every step before.
            position: of the first of the tokens in the session.
            tokens: one chunk of a prompt, or one token.
            prompt_end: position where the prompt ends; None: these tokens are its end.
            sampling: how the token after them is chosen; None: no token is needed.
            scoring: the tokens after them whose log-probabilities are needed; None: of none.
            pictures: which of them are rows of pictures; None: none, nor any before them.
        """
        pending = self._new_step(session, step, sampling)
        pending.prompt_end, pending.scoring, pending.pictures = prompt_end, scoring, pictures
        if self._broken is not None:
            return pending
        with self._lock:
            self._forward(pending, position, tokens)
            self._steps.add(pending)
        return pending

    def follow(
        self,
        session: SessionId,
        *,
        step: int,
        sampling: Sampling,
        stops: Collection[int] = (),
        pictures: StepPictures | None = None,
    ) -> PendingStep:
        """Have the token that the step before chooses sent back in, as soon as it arrives.

        Args:
            session: the session of the step before.
            step: number of this step, which is one more than that of the step before.
            sampling: how the next token is chosen.
            stops: token ids that end the answer.
            pictures: where rope counts its token behind pictures.
        """
        pending = self._new_step(session, step, sampling)
        pending.stops, pending.pictures = stops, pictures
        if self._broken is not None:
            return pending
        with self._lock:
            if self._steps.follow(pending, self._clock()):
                self._send_fed()
        return pending

    def give_up(self, step: PendingStep) -> None:
        """Forget a step. It is not sent any more, if it was not yet: see its `token`."""
        with self._lock:
            self._steps.remove(step.session, step.step)
        step.future.add_done_callback(_ignore)
        step.future.cancel()
        self._ended.set()

    def _new_step(self, session: SessionId, step: int, sampling: Sampling | None) -> PendingStep:
        pending = PendingStep(session, step, self._loop.create_future(), sampling)
        if self._broken is not None:
            pending.future.set_exception(self._broken)
        return pending

    def _forward(
        self, step: PendingStep, position: int, tokens: Sequence[int], more: int = 0
    ) -> None:
        if self._is_draining:
            return
        step.sent = self._clock()
        self.sent_tokens += len(tokens)
        message = Forward(
            epoch=self.epoch,
            session=step.session,
            step=step.step,
            position=position,
            tensor=TensorHeader(dtype="I32", shape=(len(tokens),)),
            prompt_end=step.prompt_end,
            sampling=step.sampling,
            scoring=step.scoring,
            more=more,
            pictures=step.pictures,
        )
        try:
            self._first.send_nowait(message, token_payload(tokens))
        except PeerLostError:  # `run` notices it too, and then fails the step
            logger.debug("a step was not sent, the first stage is lost step=%d", step.step)


async def _until_lost(link: ActivationLink) -> None:
    await link.wait_closed()
    raise computer_lost(link.peer.name)


def _ignore(future: "asyncio.Future[StepResult]") -> None:
    if not future.cancelled():
        future.exception()
