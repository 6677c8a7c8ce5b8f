"""The messages between a node and a grammar process, in the frames of `cluster/processes/messages.py`.

Each request gets one answer, and the next request is sent after it.
"""

from typing import TypeAlias

import msgspec

from potluck.api.prompts import Constraint
from potluck.cluster.text.messages import Failed, TextMessage


class OpenVocabulary(TextMessage, frozen=True):
    """The first request: read the tokenizer of a model's folder."""

    folder: str
    vocab_size: int  # token ids that the model's weights know
    memory: int  # bytes that the process may take, where the system can limit that
    vocabulary_s: float  # seconds for this request
    open_s: float  # for each `OpenGrammar`
    step_s: float  # for each `PushTokens`


class OpenGrammar(TextMessage, frozen=True):
    """Begin a grammar, or go on with one after the tokens of an answer so far. Answered by `Allowed`."""

    grammar: int  # a number that names it
    constraint: Constraint
    tokens: list[int]
    closed: list[int]  # grammars that are not needed any more


class PushTokens(TextMessage, frozen=True):
    """The next tokens of an answer. Answered by `Allowed`."""

    grammar: int
    tokens: list[int]


ToGrammar: TypeAlias = OpenVocabulary | OpenGrammar | PushTokens


class VocabularyOpened(TextMessage, frozen=True):
    """The answer to `OpenVocabulary`."""


class Allowed(TextMessage, frozen=True):
    """The tokens that may follow, as in `Sampling.allowed`. None: all."""

    tokens: bytes | tuple[int, ...] | None
    is_over: bool = False  # the text is complete, and nothing may follow


FromGrammar: TypeAlias = VocabularyOpened | Allowed | Failed

decode_to_grammar = msgspec.msgpack.Decoder[ToGrammar](ToGrammar).decode
decode_from_grammar = msgspec.msgpack.Decoder[FromGrammar](FromGrammar).decode
