"""The driver's two connections with a chain of stages: results arrive here, and the loss of the chain is noticed.

What is under way ends here in any case: with its result, with the error of its stage, or with what broke the chain.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from potluck.cluster.driver.payload import token_payload
from potluck.cluster.driver.pending import PendingStep, PendingSteps, StepResult
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
from potluck.wire.activation_messages import (
    Attach,
    Forward,
    Result,
    TensorHeader,
)
from potluck.wire.messages import Error, Message, NodeInfo, StepFailed

logger = logging.getLogger(__name__)

SILENCE_S = 180.0  # for one chunk on the slowest computer; heartbeats notice a lost one earlier

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


class ChainEnds:
    """Both connections, and the steps that are under way between them. `run` receives.

    Attributes:
        times: how long the tokens take that it computes.
        sent_tokens: how many tokens the stages were given to compute.
        is_draining: whether it gets no more: what is under way may end.
        is_drained: whether all stages have the same tokens, and get no more.
    """

    def __init__(
        self,
        *,
        epoch: int,
        first: ActivationLink,
        last: ActivationLink,
        stages: int,
        silence_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Begin with nothing under way; `Pipeline` says what the arguments are."""
        self.epoch = epoch
        self.stages = stages
        self.times = TokenTimes(stages)
        self.sent_tokens = 0
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
        self.is_draining = self.is_drained = False
        self._ended = asyncio.Event()  # a step has

    @property
    def broken(self) -> PotluckError | None:
        """Why no step can run any more; None: steps can run."""
        return self._broken

    @property
    def sends(self) -> bool:
        """Whether what it is given goes to the stages: it is neither broken nor drained."""
        return self._broken is None and not self.is_draining

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
            self.is_draining, self._steps.feeds = True, False
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._broken is None and self._has_sent:
                    self._ended.clear()
                    await self._ended.wait()
        self.is_drained = self.is_drained or (self._broken is None and not self._has_sent)

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
            try:
                step = self._steps.take(result, now)
            except EngineError as error:
                self._loop.call_soon_threadsafe(self.fail, error)
                return
            if step is not None and step.token is not None and self._steps.are_of(result.session):
                self._note(step, step.seconds(now), result.compute_ms)
            if not result.more:
                self._send_fed()
        if step is not None:
            arrived = StepResult(result, step.seconds(now))
            self._loop.call_soon_threadsafe(self._set_result, step.future, arrived)

    def _note(self, step: PendingStep, seconds: float, compute_ms: Sequence[float]) -> None:
        """Learn how long a token took that was computed alone, or one with guesses."""
        self._steps.costs.note(len(step.drafts), seconds)
        if not step.drafts:
            self.times.note(seconds, compute_ms)

    def _send_fed(self) -> None:
        """Send the tokens whose results came together at once, so that they stay together."""
        fed = self._steps.take_fed()
        for more, (step, position) in zip(reversed(range(len(fed))), fed, strict=True):
            assert step.token is not None
            self._forward(step, position, [step.token, *step.drafts], more)

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

    def _forward(
        self, step: PendingStep, position: int, tokens: Sequence[int], more: int = 0
    ) -> None:
        if self.is_draining:
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
            drafts=step.drafts,
        )
        try:
            self._first.send_nowait(message, token_payload(tokens))
        except PeerLostError:  # `run` notices it too, and then fails the step
            logger.debug("a step was not sent, the first stage is lost step=%d", step.step)


async def _until_lost(link: ActivationLink) -> None:
    await link.wait_closed()
    raise computer_lost(link.peer.name)
