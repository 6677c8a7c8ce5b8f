"""How a model reads and writes, as a conversation with it sees that."""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from msgspec import Struct

from potluck.api.prompts import ChatPrompt, ChatTurn, Constraint
from potluck.cluster.driver.grammar import Grammar
from potluck.errors import PromptError
from potluck.model.answers.format import AnswerFormat
from potluck.model.text.detokenizer import Vocabulary
from potluck.wire.activation_messages import TensorHeader


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation in the values that `ChatFormat.render_chat` takes."""

    messages: Sequence[dict[str, object]]
    tools: Sequence[dict[str, object]] | None = None
    variables: dict[str, object] = {}
    continue_final: bool = False
    pictures: tuple[bytes, ...] = ()  # files; the messages have a part `image` for each


class Picture(Struct, frozen=True, kw_only=True):
    """A picture as a model's tower takes it.

    Attributes:
        name: by its content, 64 hexadecimal digits.
        height, width: in pixels.
        rows, columns: lines of cells, and cells of each: the tower makes one row of each cell.
        order: the number of the row for each token of the prompt that stands for one; empty: all, one after the other.
        mean, deviation: of red, green and blue from 0 to 1.
        pixels: height x width x 3 bytes.
    """

    name: str
    height: int
    width: int
    rows: int
    columns: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    pixels: bytes
    order: tuple[int, ...] = ()

    @property
    def shown(self) -> Sequence[int]:
        """The number of the row for each token of the prompt that stands for one."""
        return self.order or range(self.rows * self.columns)

    @property
    def made(self) -> int:
        """How many rows the tower makes: where they have an order, also that of a line's end."""
        return self.rows * self.columns + bool(self.order)


class Rows(NamedTuple):
    """Some rows of a picture that a tower has made: (rows, numbers), F32."""

    tensor: TensorHeader
    data: bytes


class EncodedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as token ids."""

    token_ids: list[int]
    is_reasoning: bool = False  # the template has begun the reasoning of the answer
    pictures: tuple[Picture, ...] = ()  # in the order in which they stand in the prompt
    picture_token: int = -1  # that stands for each of their rows


class ModelText(Protocol):
    """`ChatFormat`, in a process of its own; and grammars, in another."""

    vocabulary: Vocabulary
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    answers: AnswerFormat

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...
    async def encode_fill(self, before: str, after: str) -> list[int]: ...
    async def encode_chat(self, conversation: Conversation) -> EncodedPrompt: ...
    async def constrain(self, constraint: Constraint, vocab_size: int) -> Grammar: ...


def conversation_of(prompt: ChatPrompt) -> Conversation:
    """The conversation of a client.

    Raises:
        PromptError: a schema or the template's variables are no JSON objects.
    """
    use = prompt.tool_use
    tools: list[dict[str, object]] | None = None
    if use is not None and use.choice != "none":
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": object_of(
                        tool.parameters, f"tools: the parameters of {tool.name}"
                    ),
                },
            }
            for tool in use.tools
        ]
    return Conversation(
        messages=[_message(turn) for turn in prompt.turns],
        tools=tools,
        variables=object_of(prompt.variables, "chat_template_kwargs"),
        continue_final=prompt.continues,
        pictures=tuple(picture.data for turn in prompt.turns for picture in turn.pictures),
    )


def _message(turn: ChatTurn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role, "content": _content(turn)}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ]
    if turn.call_id:
        message["tool_call_id"] = turn.call_id
    if turn.name:
        message["name"] = turn.name
    return message


def _content(turn: ChatTurn) -> str | list[dict[str, str]]:
    """The text of a turn, or parts with its pictures where they stand in the text."""
    if not turn.pictures:
        return turn.content
    parts: list[dict[str, str]] = []
    begin = 0
    for picture in turn.pictures:
        if text := turn.content[begin : picture.at]:
            parts.append({"type": "text", "text": text})
        parts.append({"type": "image"})
        begin = picture.at
    if text := turn.content[begin:]:
        parts.append({"type": "text", "text": text})
    return parts


def object_of(text: str, what: str) -> dict[str, object]:
    """The JSON object of a text.

    Raises:
        PromptError: it has none; `what` says of what it was to be.
    """
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PromptError(f"{what}: this must be a JSON object.")
    return cast("dict[str, object]", found)
