"""Apply one message to a stage, and make the message for the next stage or for the driver."""

import time
from typing import TypeAlias

import msgspec

from potluck.engine.payload import from_payload, to_payload
from potluck.engine.stage import Output, Stage
from potluck.ids import SessionId
from potluck.wire.messages import (
    CloseSession,
    Forward,
    Message,
    OpenSession,
    Result,
    TokenLogprob,
    TrimSession,
)

SessionMessage: TypeAlias = OpenSession | Forward | TrimSession | CloseSession


def apply(stage: Stage, message: SessionMessage, payload: memoryview) -> tuple[Message, memoryview]:
    """Apply a message to the stage.

    Returns:
        The message and the payload for the next stage, or for the driver.
    """
    session = SessionId(message.session)
    match message:
        case OpenSession():
            stage.open(session, epoch=message.epoch)
        case CloseSession():
            stage.close(session, epoch=message.epoch)
        case TrimSession():
            # A stage that holds less reports it at the next step. The message still goes on, since
            # the other stages have to trim.
            if stage.position(session) > message.position:
                stage.trim(session, message.position, epoch=message.epoch)
        case Forward():
            return _forward(stage, message, payload)
    return message, payload


def _forward(stage: Stage, message: Forward, payload: memoryview) -> tuple[Message, memoryview]:
    started = time.perf_counter()
    output = stage.forward(
        SessionId(message.session),
        from_payload(message.tensor, payload),
        epoch=message.epoch,
        step=message.step,
        position=message.position,
        prompt_end=message.prompt_end,
        sampling=message.sampling,
    )
    if output.hidden is None:
        return _result(message, output, _compute_ms(message, started)), memoryview(b"")
    header, data = to_payload(output.hidden)
    compute_ms = _compute_ms(message, started)
    return msgspec.structs.replace(message, tensor=header, compute_ms=compute_ms), data


def _compute_ms(message: Forward, started: float) -> tuple[float, ...]:
    return (*message.compute_ms, 1000 * (time.perf_counter() - started))


def _result(message: Forward, output: Output, compute_ms: tuple[float, ...]) -> Result:
    choice = output.choice
    return Result(
        epoch=message.epoch,
        session=message.session,
        step=message.step,
        position=output.position,
        token_id=choice.token_id if choice else None,
        logprob=choice.logprob if choice else None,
        top=tuple(TokenLogprob(token_id=t, logprob=p) for t, p in choice.top) if choice else (),
        compute_ms=compute_ms,
    )
