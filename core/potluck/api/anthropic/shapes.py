"""Anthropic's requests and responses, as far as Potluck supports them. Pure, like `potluck.api.v1.request_shapes`.

The shapes are those of the Messages API, version 2023-06-01. Unknown fields are ignored.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from potluck.api.v1.request_shapes import MAX_TOKENS, ToolName
from potluck.api.values.timings import Timings

_NOTHING = msgspec.Raw(b"null")

# --- requests


class Source(Struct, frozen=True, kw_only=True):
    """Where the bytes of an image are."""

    type: str
    data: str | None = None  # base64
    url: str | None = None


class Block(Struct, frozen=True, kw_only=True):
    """A part of a message: the fields of all its types."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None  # of a tool_use
    name: str | None = None
    input: msgspec.Raw = _NOTHING
    tool_use_id: str | None = None  # of a tool_result
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    source: Source | None = None  # of an image


class Message(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, frozen=True, kw_only=True):
    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = _NOTHING
    strict: bool | None = None


class ToolChoice(Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True, kw_only=True):
    type: str


class CountRequest(Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens, and what a message has in common with it."""

    model: Annotated[str, Meta(max_length=4096)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    system: str | list[Block] | None = None
    tools: msgspec.Raw = _NOTHING  # decoded where their size is known
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None


class MessageRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    stop_sequences: (
        Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=16)] | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None


# --- responses

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(Struct, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, frozen=True, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


AnswerBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class Usage(Struct, frozen=True, kw_only=True):
    input_tokens: int  # without those that were found in the caches
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Answer(Struct, frozen=True, kw_only=True):
    id: str
    model: str
    content: tuple[AnswerBlock, ...]
    usage: Usage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    potluck: Timings | UnsetType = UNSET


class Counted(Struct, frozen=True, kw_only=True):
    input_tokens: int


# --- events of a stream; the name of each is its tag


class MessageStart(Struct, frozen=True, kw_only=True, tag="message_start"):
    message: Answer


class BlockStart(Struct, frozen=True, kw_only=True, tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(Struct, frozen=True, kw_only=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, kw_only=True, tag="thinking_delta"):
    thinking: str


class InputDelta(Struct, frozen=True, kw_only=True, tag="input_json_delta"):
    partial_json: str


class BlockDelta(Struct, frozen=True, kw_only=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Struct, frozen=True, kw_only=True, tag="content_block_stop"):
    index: int


class StopDelta(Struct, frozen=True, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(Struct, frozen=True, kw_only=True, tag="message_delta"):
    delta: StopDelta
    usage: Usage
    potluck: Timings


class MessageStop(Struct, frozen=True, kw_only=True, tag="message_stop"):
    pass


StreamEvent: TypeAlias = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)


class ErrorDetail(Struct, frozen=True, kw_only=True):
    type: str
    message: str


class ErrorAnswer(Struct, frozen=True, kw_only=True, tag="error"):
    error: ErrorDetail
