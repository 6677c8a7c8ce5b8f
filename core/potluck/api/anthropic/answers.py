"""Format the events of one generation as Anthropic's answers, in events of a stream or as a whole."""

import secrets
from collections.abc import Iterator, Sequence

import msgspec

from potluck.api.anthropic.shapes import (
    Answer,
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    StopDelta,
    StopReason,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from potluck.api.events import CallPiece, Finished, Piece, Started
from potluck.api.v1.answers import object_of, whole_calls

_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessageFormat:
    """One answer, in pieces. Use an instance for one answer: it counts the blocks."""

    def __init__(self, model: str) -> None:
        self._id, self._model = new_id(), model
        self._blocks = 0
        self._open: object = None  # what the open block is: a type, or the index of a call
        self._started = Started(prompt_token_ids=())

    def first(self, started: Started) -> Iterator[StreamEvent]:
        """The beginning of the answer."""
        self._started = started
        usage = _usage(started, 0)
        yield MessageStart(message=Answer(id=self._id, model=self._model, content=(), usage=usage))

    def piece(self, piece: Piece) -> Iterator[StreamEvent]:
        """More of it."""
        if piece.reasoning:
            yield from self._begin(ThinkingBlock, ThinkingBlock(thinking=""))
            yield self._delta(ThinkingDelta(thinking=piece.reasoning))
        if piece.text:
            yield from self._begin(TextBlock, TextBlock(text=""))
            yield self._delta(TextDelta(text=piece.text))
        for call in piece.calls:
            yield from self._begin(call.index, ToolUseBlock(id=call.id, name=call.name))
            if call.arguments:
                yield self._delta(InputDelta(partial_json=call.arguments))

    def last(self, finished: Finished) -> Iterator[StreamEvent]:
        """The end of it, with its figures."""
        yield from self._end()
        yield MessageDelta(
            delta=_stop(finished),
            usage=_usage(self._started, finished.completion_tokens),
            potluck=finished.timings,
        )
        yield MessageStop()

    def _begin(self, kind: object, block: AnswerBlock) -> Iterator[StreamEvent]:
        """Have a block of this kind open."""
        if self._open == kind:
            return
        yield from self._end()
        yield BlockStart(index=self._blocks, content_block=block)
        self._open = kind
        self._blocks += 1

    def _end(self) -> Iterator[StreamEvent]:
        if self._open is not None:
            yield BlockStop(index=self._blocks - 1)
            self._open = None

    def _delta(self, delta: TextDelta | ThinkingDelta | InputDelta) -> BlockDelta:
        return BlockDelta(index=self._blocks - 1, delta=delta)


def whole(model: str, started: Started, pieces: Sequence[Piece], finished: Finished) -> Answer:
    """An answer as one object."""
    blocks: list[AnswerBlock] = []
    if thinking := "".join(piece.reasoning for piece in pieces):
        blocks.append(ThinkingBlock(thinking=thinking))
    if text := "".join(piece.text for piece in pieces):
        blocks.append(TextBlock(text=text))
    blocks += [_tool_use(call) for call in whole_calls(pieces)]
    stop = _stop(finished)
    return Answer(
        id=new_id(),
        model=model,
        content=tuple(blocks),
        usage=_usage(started, finished.completion_tokens),
        stop_reason=stop.stop_reason,
        stop_sequence=stop.stop_sequence,
        potluck=finished.timings,
    )


def new_id() -> str:
    """The id of an answer."""
    return f"msg_{secrets.token_hex(12)}"


def _tool_use(call: CallPiece) -> ToolUseBlock:
    return ToolUseBlock(id=call.id, name=call.name, input=msgspec.Raw(object_of(call).encode()))


def _stop(finished: Finished) -> StopDelta:
    if finished.stop_text is not None:
        return StopDelta(stop_reason="stop_sequence", stop_sequence=finished.stop_text)
    return StopDelta(stop_reason=_REASONS[finished.reason])


def _usage(started: Started, output: int) -> Usage:
    cached = started.cached_tokens
    return Usage(
        input_tokens=len(started.prompt_token_ids) - cached,
        output_tokens=output,
        cache_read_input_tokens=cached,
    )
