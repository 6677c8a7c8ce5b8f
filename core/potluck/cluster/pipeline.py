"""The driver's two ends of a chain of stages: steps go in at the first, results come out at the last.

Everything enters by the first stage and travels in order, so a trim is always seen after the steps
before it. What a stage cannot do is reported over control, since the chain itself may be what broke.
"""

import asyncio
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """What a pipeline needs of a connection."""

    @property
    def peer(self) -> NodeInfo: ...
    def send_nowait(self, message: Message, payload: bytes = b"") -> None: ...
    async def receive(self) -> tuple[Message, memoryview]: ...
    def close(self) -> None: ...


def computer_lost(name: str, how: str = "stopped answering") -> PeerLostError:
    """A computer that holds a part of the model is gone; the sentence names it."""
    return PeerLostError(
        f"{name} {how}, and it held a part of the model. The answer was interrupted; the next one"
        " runs on the computers that are left.",
        name=name,
    )


def token_payload(tokens: Sequence[int]) -> bytes:
    """Token ids as the wire carries them: little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


class Pipeline:
    """A plan in force, as its driver sees it. Broken once, it stays broken: make another."""

    def __init__(
        self, *, epoch: int, first: ActivationLink, last: ActivationLink, stages: int
    ) -> None:
        self.epoch = epoch
        self.stages = stages
        self._first = first
        self._last = last
        self._waiting: dict[tuple[str, int], asyncio.Future[Result]] = {}
        self._broken: PotluckError | None = None

    @property
    def broken(self) -> PotluckError | None:
        """Why no step can run any more, or None."""
        return self._broken

    async def run(self) -> None:
        """Hand results to who waits for them, until a connection ends; then fail the rest."""
        try:
            self._last.send_nowait(Attach(epoch=self.epoch))
            async with asyncio.TaskGroup() as tasks:
                for link in {self._first, self._last}:
                    tasks.create_task(self._read(link))
        except* PotluckError as errors:
            error = errors.exceptions[0]
            assert isinstance(error, PotluckError)
            self.fail(error)

    def shut(self) -> None:
        """Fail who still waits, and end both connections; `run` ends with them."""
        self.fail(PeerLostError("The model was unloaded while it was answering."))
        self._first.close()
        self._last.close()

    async def _read(self, link: ActivationLink) -> None:
        while True:
            try:
                message, _ = await link.receive()
            except PeerLostError as error:
                raise computer_lost(link.peer.name) from error
            match message:
                case Result() if message.epoch == self.epoch:
                    future = self._waiting.pop((message.session, message.step), None)
                    if future is not None and not future.done():
                        future.set_result(message)
                case Error():
                    raise EngineError(message.message, kind=message.kind)
                case _:
                    logger.debug("driver ignores a message op=%s", type(message).__name__)

    def fail(self, error: PotluckError) -> None:
        """Nothing more will come: everyone who waits gets this error."""
        self._broken = self._broken or error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._broken)

    def step_failed(self, failure: StepFailed) -> None:
        """A stage could not do a step. What does not pass by itself breaks the pipeline."""
        if failure.epoch != self.epoch:
            return
        kind = _STEP_ERRORS.get(failure.kind, EngineError)
        error = kind(failure.message, position=failure.position)
        if failure.kind not in _PASSING:
            self.fail(error)
            return
        future = self._waiting.pop((failure.session, failure.step), None)
        if future is not None and not future.done():
            future.set_exception(error)

    def open(self, session: SessionId) -> None:
        """Make the session's caches; one that is there already is kept."""
        self._send(OpenSession(epoch=self.epoch, session=session))

    def trim(self, session: SessionId, position: int) -> None:
        """Let every stage forget what it holds from this position on."""
        self._send(TrimSession(epoch=self.epoch, session=session, position=position))

    def close(self, session: SessionId) -> None:
        """Free the session's caches."""
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
    ) -> asyncio.Future[Result]:
        """Send tokens on their way; the future is the last stage's result, or why there is none."""
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[session, step] = future
        message = Forward(
            epoch=self.epoch,
            session=session,
            step=step,
            position=position,
            tensor=TensorHeader(dtype="I32", shape=(len(tokens),)),
            prompt_end=prompt_end,
            sampling=sampling,
        )
        self._first.send_nowait(message, token_payload(tokens))
        return future

    async def finish_step(self, future: asyncio.Future[Result]) -> Result:
        """Wait for a step, but not for ever.

        Raises:
            PeerTimeoutError: nothing came for `STEP_TIMEOUT_S`.
            PotluckError: what a stage reported, or what broke the pipeline.
        """
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                return await future
        except TimeoutError:
            self.fail(
                PeerTimeoutError(
                    f"No computer answered this step within {STEP_TIMEOUT_S:.0f} seconds."
                    " The answer was stopped; try again."
                )
            )
            assert self._broken is not None
            raise self._broken from None
