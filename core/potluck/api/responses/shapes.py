"""Requests and responses of OpenAI's Responses API, as far as Potluck supports them. Pure.

Unknown fields are ignored.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from potluck.api.v1.request_shapes import MAX_TOKENS, ToolName
from potluck.api.values.timings import Timings

NOTHING = msgspec.Raw(b"null")

# --- requests


class Part(Struct, frozen=True, kw_only=True):
    """A part of a message, of a result or of reasoning."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None  # of an input_image


class Item(Struct, frozen=True, kw_only=True):
    """An item of the input: the fields of all its types."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None  # of a function_call and its output
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None  # of reasoning


class Tool(Struct, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = NOTHING
    strict: bool | None = None
    tools: "list[Tool] | None" = None  # of a namespace


class NamedChoice(Struct, frozen=True, kw_only=True):
    type: str
    name: ToolName | None = None


class TextFormat(Struct, frozen=True, kw_only=True):
    type: str = "text"
    schema: msgspec.Raw = NOTHING
    strict: bool | None = None


class TextOptions(Struct, frozen=True, kw_only=True):
    format: TextFormat | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    effort: Annotated[str, Meta(max_length=64)] | None = None


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | Annotated[list[Item], Meta(max_length=8192)]
    model: Annotated[str, Meta(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=256)] | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: msgspec.Raw = NOTHING  # decoded where their size is known
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: msgspec.Raw = NOTHING
    background: bool | None = None
    conversation: msgspec.Raw = NOTHING


# --- responses


class OutputText(Struct, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: tuple[str, ...] = ()


class ReasoningText(Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    text: str


Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class MessageItem(Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: Status
    content: tuple[OutputText, ...] = ()
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, frozen=True, kw_only=True, tag="reasoning"):
    id: str
    summary: tuple[str, ...] = ()
    content: tuple[ReasoningText, ...] = ()
    status: Status | UnsetType = UNSET


class CallItem(Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    namespace: str | UnsetType = UNSET


OutputItem: TypeAlias = MessageItem | ReasoningItem | CallItem


class InputDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int


class OutputDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class Incomplete(Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Failure(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class ModelResponse(Struct, frozen=True, kw_only=True):
    """A response: of the request, the fields that clients read back."""

    id: str
    created_at: int
    model: str
    status: Status
    output: tuple[OutputItem, ...] = ()
    usage: Usage | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool = True
    tool_choice: msgspec.Raw = msgspec.Raw(b'"auto"')
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    store: bool = True
    object: Literal["response"] = "response"
    potluck: Timings | UnsetType = UNSET


class Deleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True
