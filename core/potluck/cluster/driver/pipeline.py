"""The driver's two ends of a chain of stages: steps go in at the first, results come out at the last.

Everything enters by the first stage and travels in order, so a trim is always seen after the steps
before it. What a stage cannot do is reported over control, since the chain itself may be what broke.
"""

import asyncio
import logging
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

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
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId
from potluck.wire.messages import (
    Attach,
    CloseSession,
    Error,
    Forward,
    Message,
    NodeInfo,
    OpenSession,
    Result,
    Sampling,
    StepFailed,
    TensorHeader,
    TrimSession,
)

logger = logging.getLogger(__name__)

STEP_TIMEOUT_S = 180.0  # one chunk on the slowest computer; a lost one is noticed by its heartbeats

# What ends one step and not the pipeline; after any other error the plan is made again.
_PASSING = (
    NeedReplayError.code,
    UnknownSessionError.code,
    OutOfMemoryError.code,
    PromptError.code,
    InvalidStepError.code,
)
_STEP_ERRORS: dict[str, type[PotluckError]] = {
    error.code: error
    for error in (
        InvalidStepError,
        NeedReplayError,
        OutOfMemoryError,
        PeerLostError,
        PromptError,
        StaleEpochError,
        UnknownSessionError,
    )
}


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens of one conversation a computer's cache can hold."""

    tokens: int
    name: str  # of the computer


class ActivationLink(Protocol):
    """What a pipeline needs of a connection; all but `wait_closed` may be called in any thread."""

    @property
    def peer(self) -> NodeInfo: ...
    def send_nowait(self, message: Message, payload: bytes = b"") -> None: ...
    def deliver_to(self, receiver: Callable[[Message, memoryview], None]) -> None:
        """Call this with each message from now on, in whichever thread receives it."""
        ...

    async def wait_closed(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to, and how long that took since it was sent."""

    result: Result
    seconds: float


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that was sent, or will be when the token of the one before it is there.

    Attributes:
        prompt_end: where the prompt ends that this is a chunk of, and not the last.
        token: that was sent in, where it is the last stage's choice; None: not yet, or a prompt.
        stops: tokens that it is not sent for, since the answer ends with them.
    """

    session: SessionId
    step: int
    future: "asyncio.Future[StepResult]"
    sampling: Sampling | None
    prompt_end: int | None = None
    sent: float | None = None  # when
    token: int | None = None
    stops: Collection[int] = ()


def token_payload(tokens: Sequence[int]) -> bytes:
    """Token ids as the wire carries them: little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


class Pipeline:
    """A plan in force, as its driver sees it. Broken once, it stays broken: make another.

    A token is sent back in by the thread that received it, before anybody looks at it, if the step
    that follows was asked for: see `follow`.
    """

    def __init__(
        self,
        *,
        epoch: int,
        first: ActivationLink,
        last: ActivationLink,
        stages: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.epoch = epoch
        self.stages = stages
        self._first = first
        self._last = last
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # over the next two
        self._pending: dict[tuple[str, int], PendingStep] = {}
        self._unfollowed: dict[
            str, Result
        ] = {}  # of each session the last that came, until followed
        self._broken: PotluckError | None = None

    @property
    def broken(self) -> PotluckError | None:
        """Why no step can run any more, or None."""
        return self._broken

    async def run(self) -> None:
        """Have results handed to who waits for them, until a connection ends; then fail the rest."""
        links = {self._first, self._last}
        for link in links:
            link.deliver_to(self._receive)
        try:
            self._last.send_nowait(Attach(epoch=self.epoch))
            async with asyncio.TaskGroup() as tasks:
                for link in links:
                    tasks.create_task(_until_lost(link))
        except* PotluckError as errors:
            error = errors.exceptions[0]
            assert isinstance(error, PotluckError)
            self.fail(error)

    def shut(self) -> None:
        """Fail who still waits, and end both connections; `run` ends with them."""
        self.fail(PeerLostError("The model was unloaded while it was answering."))
        self._first.close()
        self._last.close()

    def fail(self, error: PotluckError) -> None:
        """Nothing more will come: everyone who waits gets this error."""
        self._broken = self._broken or error
        with self._lock:
            pending, self._pending = self._pending, {}
        for step in pending.values():
            if not step.future.done():
                step.future.set_exception(self._broken)

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
        with self._lock:
            step = self._pending.get((result.session, result.step))
            if step is None or step.sent is None:
                return
            del self._pending[result.session, result.step]
            following = self._pending.get((result.session, result.step + 1))
            if following is not None and following.sent is None:
                self._feed(following, result)
            else:
                self._unfollowed[result.session] = result
        arrived = StepResult(result, now - step.sent)
        self._loop.call_soon_threadsafe(_set_result, step.future, arrived)

    def _feed(self, step: PendingStep, result: Result) -> None:
        """Send the token of a result back in."""
        if (token := result.token_id) is None or token in step.stops:
            return
        step.token = token
        with suppress(PeerLostError):  # `run` hears of it too, and fails the step
            self._forward(step, result.position, [token])

    # --- steps

    def step_failed(self, failure: StepFailed) -> None:
        """A stage could not do a step. What does not pass by itself breaks the pipeline."""
        if failure.epoch != self.epoch:
            return
        kind = _STEP_ERRORS.get(failure.kind, EngineError)
        error = kind(failure.message, position=failure.position)
        if failure.kind not in _PASSING:
            self.fail(error)
            return
        with self._lock:
            step = self._pending.pop((failure.session, failure.step), None)
        if step is not None and not step.future.done():
            step.future.set_exception(error)

    def open(self, session: SessionId) -> None:
        """Make the session's caches; those of the same name are forgotten."""
        self._send(OpenSession(epoch=self.epoch, session=session))

    def trim(self, session: SessionId, position: int) -> None:
        """Let every stage forget what it holds from this position on."""
        self._send(TrimSession(epoch=self.epoch, session=session, position=position))

    def close(self, session: SessionId) -> None:
        """Free the session's caches."""
        with self._lock:
            self._unfollowed.pop(session, None)
        self._send(CloseSession(epoch=self.epoch, session=session))

    def _send(self, message: Message) -> None:
        if self._broken is None:
            self._first.send_nowait(message)

    def start_step(
        self,
        session: SessionId,
        *,
        step: int,
        position: int,
        tokens: Sequence[int],
        prompt_end: int | None = None,
        sampling: Sampling | None,
    ) -> PendingStep:
        """Send tokens on their way."""
        pending = self._new_step(session, step, sampling)
        pending.prompt_end = prompt_end
        with self._lock:
            self._unfollowed.pop(session, None)
            self._forward(pending, position, tokens)
            self._pending[session, step] = pending
        return pending

    def follow(
        self,
        session: SessionId,
        *,
        step: int,
        sampling: Sampling,
        stops: Collection[int] = (),
    ) -> PendingStep:
        """Have the token of the step before sent back in as soon as it is there, as this step.

        Args:
            session: whose last step is the one before, or was asked for like this one.
            step: its number, one more than that of the one before.
            sampling: how the next token is chosen.
            stops: tokens after which there is no step.
        """
        pending = self._new_step(session, step, sampling)
        pending.stops = stops
        with self._lock:
            self._pending[session, step] = pending
            before = self._unfollowed.get(session)
            if before is not None and before.step == step - 1:
                del self._unfollowed[session]
                self._feed(pending, before)
        return pending

    def give_up(self, step: PendingStep) -> None:
        """Wait for a step no longer, and send it no more if it was not: see its `token`."""
        with self._lock:
            self._pending.pop((step.session, step.step), None)
        step.future.add_done_callback(_ignore)
        step.future.cancel()

    def _new_step(self, session: SessionId, step: int, sampling: Sampling | None) -> PendingStep:
        if self._broken is not None:
            raise self._broken
        return PendingStep(session, step, self._loop.create_future(), sampling)

    def _forward(self, step: PendingStep, position: int, tokens: Sequence[int]) -> None:
        step.sent = self._clock()
        message = Forward(
            epoch=self.epoch,
            session=step.session,
            step=step.step,
            position=position,
            tensor=TensorHeader(dtype="I32", shape=(len(tokens),)),
            prompt_end=step.prompt_end,
            sampling=step.sampling,
        )
        self._first.send_nowait(message, token_payload(tokens))

    async def finish_step(self, step: PendingStep) -> StepResult:
        """Wait for a step, but not for ever.

        Raises:
            PeerTimeoutError: nothing came for `STEP_TIMEOUT_S`.
            PotluckError: what a stage reported, or what broke the pipeline.
        """
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                return await step.future
        except TimeoutError:
            self.fail(
                PeerTimeoutError(
                    f"No computer answered this step within {STEP_TIMEOUT_S:.0f} seconds."
                    " The answer was stopped; try again."
                )
            )
            assert self._broken is not None
            raise self._broken from None


async def _until_lost(link: ActivationLink) -> None:
    await link.wait_closed()
    raise computer_lost(link.peer.name)


def _set_result(future: "asyncio.Future[StepResult]", result: StepResult) -> None:
    if not future.done():
        future.set_result(result)


def _ignore(future: "asyncio.Future[StepResult]") -> None:
    if not future.cancelled():
        future.exception()
