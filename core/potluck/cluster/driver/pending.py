"""A step that a driver waits for, and its result."""

import asyncio
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from potluck.ids import SessionId
from potluck.wire.activation_messages import Result, Sampling


@dataclass(frozen=True, slots=True)
class StepResult:
    """The last stage's answer to a step, and how long it took."""

    result: Result
    seconds: float  # since the step was sent


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that was sent, or that will be sent when the result of the step before it arrives.

    Attributes:
        future: the result, or the error that ended this step or the pipeline.
        prompt_end: position where the prompt ends, if this is one of its chunks but the last.
        sent: time at which it was sent; None: it was not sent yet.
        token: the chosen token that was sent with it; None: it was not sent yet, or it is a chunk.
        stops: token ids that end the answer. The step is not sent if it would carry one of them.
    """

    session: SessionId
    step: int
    future: "asyncio.Future[StepResult]"
    sampling: Sampling | None
    prompt_end: int | None = None
    sent: float | None = None
    token: int | None = None
    stops: Collection[int] = ()


def token_payload(tokens: Sequence[int]) -> bytes:
    """Token ids in the form of the wire: little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)
