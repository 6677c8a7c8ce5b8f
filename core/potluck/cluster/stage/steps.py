"""Apply messages to a stage, and make the messages for the next stage or for the driver."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from potluck.cluster.stage.loaded import LoadedStage
from potluck.engine.payload import Activations, from_payload, to_payload
from potluck.engine.sampling.sampler import Choice
from potluck.engine.session import Output, StepTokens
from potluck.engine.stage import Stage
from potluck.errors import PotluckError
from potluck.ids import SessionId
from potluck.wire.activation_messages import (
    ChosenToken,
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    PictureRows,
    RestoreSession,
    Result,
    StepPictures,
    TensorHeader,
    TokenLogprob,
    TokenScore,
    TrimSession,
)
from potluck.wire.cache_messages import ExpectCache, ForgetBefore, SendCache, TakeCache
from potluck.wire.messages import Message

SessionMessage: TypeAlias = OpenSession | Forward | TrimSession | CloseSession | KeepSession
TransferMessage: TypeAlias = ExpectCache | SendCache | TakeCache | ForgetBefore
Answer: TypeAlias = tuple[Message, memoryview]
"""A message and its payload, for the next stage or for the driver."""


def apply(stage: Stage, message: SessionMessage, payload: memoryview) -> Answer:
    """Apply a message to the stage."""
    session = SessionId(message.session)
    match message:
        case OpenSession():
            source = None if message.source is None else SessionId(message.source)
            stage.open(session, epoch=message.epoch, source=source, position=message.position)
        case CloseSession():
            stage.close(session, epoch=message.epoch)
        case TrimSession():
            # A stage that holds less reports it at the next step. The message still goes on, since
            # the other stages have to trim.
            if stage.position(session) > message.position:
                stage.trim(session, message.position, epoch=message.epoch)
        case KeepSession():
            stage.keep(session, message.prefix, epoch=message.epoch)
        case Forward():
            (answer,) = forward(stage, [(message, payload)])
            if isinstance(answer, Exception):
                raise answer
            return answer
    return message, payload


def restore(stage: Stage, message: RestoreSession, done: Callable[[int], object]) -> None:
    """Restore what all stages before have restored as well, or less; `done` is told how many tokens that are."""
    if not message.position:  # a stage before has nothing
        done(0)
        return
    session = SessionId(message.session)
    stage.restore(session, message.prefix, message.position, epoch=message.epoch, done=done)


def transfer(loaded: LoadedStage, message: TransferMessage) -> Answer | None:
    """Do what a driver asks of a transfer; None: it is answered later."""
    nothing, transfers = memoryview(b""), loaded.transfers
    match message:
        case ExpectCache():
            result = transfers.expect(message)
            return (message if loaded.stage.head is None else result), nothing
        case SendCache():
            transfers.send(message)
            return message, nothing
        case TakeCache():
            loaded.agreement.ask(message)
            transfers.take(message)
            return None
        case ForgetBefore():
            transfers.forget_before()
            return message, nothing


def answer_to(stage: Stage, message: TakeCache | RestoreSession, position: int) -> Answer:
    """What follows when a stage has what it was to take or to restore, or less: so many tokens."""
    answer: Message = msgspec.structs.replace(message, position=position)
    if stage.head is not None:
        answer = Result(
            epoch=message.epoch, session=message.session, step=message.step, position=position
        )
    return answer, memoryview(b"")


def forward(
    stage: Stage, messages: Sequence[tuple[Forward, memoryview]]
) -> list[Answer | Exception]:
    """Compute steps of different sessions in one forward pass.

    Returns:
        Of each message the answer, or why its step failed. Answers to several say how many follow.
    """
    started = time.perf_counter()
    refused: dict[int, Exception] = {}
    steps: dict[int, StepTokens] = {}
    for index, (message, payload) in enumerate(messages):
        try:
            steps[index] = step_tokens(message, payload)
        except PotluckError as error:
            refused[index] = error
    outputs = dict(zip(steps, stage.forward_together(list(steps.values())), strict=True)) | refused
    # What several tokens took together is no measure of one.
    times = (1000 * (time.perf_counter() - started),) if len(steps) == 1 else ()
    more = sum(isinstance(output, Output) for output in outputs.values())
    answers: list[Answer | Exception] = []
    for index, (message, payload) in enumerate(messages):
        output = outputs[index]
        if isinstance(output, Output):
            more -= 1
            ids = _known_ids(message, payload) if stage.sends_ids else b""
            answers.append(_answer(message, output, (*message.compute_ms, *times), more, ids))
        else:
            answers.append(output)
    return answers


def step_tokens(message: Forward, payload: memoryview) -> StepTokens:
    """What a `forward` asks a stage for.

    Raises:
        InvalidStepError: its payload is no tensor that a stage computes on.
    """
    return StepTokens(
        SessionId(message.session),
        from_payload(message.tensor, payload),
        message.epoch,
        message.step,
        message.position,
        message.sampling,
        message.prompt_end,
        message.scoring,
        _ids(message),
        *_pictures(message.pictures),
        message.drafts,
    )


def _ids(message: Forward) -> Activations | None:
    if not message.ids:
        return None
    header = TensorHeader(dtype="I32", shape=(len(message.ids) // 4,))
    return from_payload(header, message.ids)


def _pictures(
    pictures: StepPictures | None,
) -> tuple[tuple[PictureRows, ...], int, Activations | None]:
    """Rows of pictures, lag and places of a step."""
    if pictures is None:
        return (), 0, None
    if not pictures.places:
        return pictures.rows, pictures.lag, None
    header = TensorHeader(dtype="I32", shape=(3, len(pictures.places) // 12))
    return pictures.rows, pictures.lag, from_payload(header, pictures.places)


def _known_ids(message: Forward, payload: memoryview) -> bytes:
    """The ids of the tokens of a step, as the next stage gets them."""
    return payload.tobytes() if message.tensor.dtype == "I32" else message.ids


def _answer(
    message: Forward, output: Output, compute_ms: tuple[float, ...], more: int, ids: bytes
) -> Answer:
    if output.hidden is None:
        return _result(message, output, compute_ms, more), memoryview(b"")
    header, data = to_payload(output.hidden)
    sent = msgspec.structs.replace(
        message, tensor=header, compute_ms=compute_ms, more=more, ids=ids
    )
    return sent, data


def _result(message: Forward, output: Output, compute_ms: tuple[float, ...], more: int) -> Result:
    choice = output.choice
    return Result(
        epoch=message.epoch,
        session=message.session,
        step=message.step,
        position=output.position,
        token_id=choice.token_id if choice else None,
        logprob=choice.logprob if choice else None,
        top=_top(choice) if choice else (),
        scores=tuple(
            TokenScore(logprob=score.logprob or 0.0, top=_top(score)) for score in output.scores
        ),
        embedding=output.embedding,
        compute_ms=compute_ms,
        more=more,
        accepted=tuple(
            ChosenToken(token_id=one.token_id, logprob=one.logprob, top=_top(one))
            for one in output.accepted
        ),
    )


def _top(choice: Choice) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token_id=t, logprob=p) for t, p in choice.top)
