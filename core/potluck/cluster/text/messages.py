"""The messages between a node and a text process, in the frames of `cluster/processes/messages.py`.

Each request gets one answer, and the next request is sent after it.
"""

from typing import TypeAlias

import msgspec

from potluck.cluster.driver.model_text import Conversation, EncodedPrompt
from potluck.model.answers.format import AnswerFormat
from potluck.model.text.detokenizer import Vocabulary


class TextMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base class of the messages in the unions below."""


class OpenModel(TextMessage, frozen=True):
    """The first request: read the tokenizer and the template of a model's folder."""

    folder: str
    memory: int  # bytes that the process may take, where the system can limit that
    open_s: float  # seconds for this request
    encode_s: float  # seconds for each other request


class EncodeText(TextMessage, frozen=True):
    """The token ids of a text, with the model's own for its beginning."""

    text: str
    add_special: bool = True


class EncodeFill(TextMessage, frozen=True):
    """The token ids after which the model writes what belongs between two texts."""

    before: str
    after: str


class EncodeChat(TextMessage, frozen=True):
    """The token ids of a conversation."""

    conversation: Conversation


ToText: TypeAlias = OpenModel | EncodeText | EncodeFill | EncodeChat


class ModelOpened(TextMessage, frozen=True):
    """The answer to `OpenModel`."""

    vocabulary: Vocabulary
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    answers: AnswerFormat


class Encoded(TextMessage, frozen=True):
    """The answer to the other requests."""

    prompt: EncodedPrompt


class Failed(TextMessage, frozen=True):
    """The answer to a request that failed."""

    kind: str  # a `code` of potluck.errors
    message: str
    data: dict[str, str | int | float | bool | None]


FromText: TypeAlias = ModelOpened | Encoded | Failed

decode_to_text = msgspec.msgpack.Decoder[ToText](ToText).decode
decode_from_text = msgspec.msgpack.Decoder[FromText](FromText).decode
