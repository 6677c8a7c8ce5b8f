"""The events of a streamed response; the name of each is its tag, and each has a number."""

from msgspec import Struct

from potluck.api.responses.shapes import ModelResponse, OutputItem, OutputText, ReasoningText


class Numbered(Struct, kw_only=True):
    """An event, and its place in the stream."""

    sequence_number: int = 0


class Created(Numbered, tag="response.created"):
    """The answer begins."""

    response: ModelResponse


class InProgress(Numbered, tag="response.in_progress"):
    """The same, as clients expect it."""

    response: ModelResponse


class ItemAdded(Numbered, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(Numbered, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class OfItem(Numbered, kw_only=True):
    """What belongs to an item."""

    item_id: str
    output_index: int


class PartAdded(OfItem, tag="response.content_part.added"):
    """The one part of an item begins."""

    part: OutputText | ReasoningText
    content_index: int = 0


class PartDone(OfItem, tag="response.content_part.done"):
    """The part is whole."""

    part: OutputText | ReasoningText
    content_index: int = 0


class TextDelta(OfItem, tag="response.output_text.delta"):
    """More text."""

    delta: str
    content_index: int = 0
    logprobs: tuple[str, ...] = ()


class TextDone(OfItem, tag="response.output_text.done"):
    """The whole text."""

    text: str
    content_index: int = 0
    logprobs: tuple[str, ...] = ()


class ReasoningDelta(OfItem, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str
    content_index: int = 0


class ReasoningDone(OfItem, tag="response.reasoning_text.done"):
    """The whole reasoning."""

    text: str
    content_index: int = 0


class ArgumentsDelta(OfItem, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(OfItem, tag="response.function_call_arguments.done"):
    """The whole arguments."""

    name: str
    arguments: str


class Completed(Numbered, tag="response.completed"):
    """The last event."""

    response: ModelResponse


class IncompleteEvent(Numbered, tag="response.incomplete"):
    """The last event of an answer that is too long."""

    response: ModelResponse


class Failed(Numbered, tag="response.failed"):
    """The last event of an answer that broke off."""

    response: ModelResponse
