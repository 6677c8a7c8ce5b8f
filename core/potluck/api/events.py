"""What a node answers: the events of an answer as they come, and the tokens of a prompt."""

from typing import Literal, TypeAlias

from msgspec import Struct

from potluck.api.values.errors import Error
from potluck.api.values.timings import Timings

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Tokens(Struct, frozen=True, kw_only=True):
    """A prompt as the model reads it."""

    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]  # of each token; not always whole characters
    text: str  # of all of them, without special tokens
    context: int  # how many tokens a conversation may have


class Candidate(Struct, frozen=True, kw_only=True):
    """A possible token, and its log-probability."""

    token_id: int
    token: bytes  # the bytes that it adds to the text; not always whole characters
    logprob: float


class ChosenToken(Struct, frozen=True, kw_only=True):
    """The log-probability of a token of the answer, and of the best tokens at its position."""

    chosen: Candidate
    best: tuple[Candidate, ...] = ()


class Waiting(Struct, frozen=True, kw_only=True, tag=True):
    """The place in the queue: too many answers are under way.

    It comes before `Started`, and in the middle of an answer whose caches had to make room for others.

    Attributes:
        place: from 1.
        seconds: about how long it waits from now on; None: no answer has ended yet.
    """

    place: int
    seconds: float | None


class Reading(Struct, frozen=True, kw_only=True, tag=True):
    """How far the model has read: the prompt before `Started`; what a lost computer had, after that.

    Attributes:
        tokens: in the caches of all computers.
        total: that the next token needs there.
    """

    tokens: int
    total: int


class Loading(Struct, frozen=True, kw_only=True, tag=True):
    """How far the model is loaded that answers, before `Started`.

    Attributes:
        model: its name.
        fraction: 0 to 1.
        message: what is done at the moment.
    """

    model: str
    fraction: float
    message: str = ""


class Echo(Struct, frozen=True, kw_only=True):
    """The prompt of an answer.

    Attributes:
        text: of all its tokens.
        first: the bytes of its first token, which has no log-probability: nothing stands before it.
        logprobs: of the others, if requested.
    """

    text: str
    first: bytes
    logprobs: tuple[ChosenToken, ...] = ()


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The first event that belongs to the answer: its first token is there."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0
    echo: Echo | None = None
    embedding: bytes = b""  # [D] in f32, little-endian, if `GenerationRequest.embeds`


class CallPiece(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of a call of a tool: its first piece has the id and the name."""

    index: int  # of the call in the answer, from 0
    id: str = ""
    name: str = ""
    arguments: str = ""  # more of their JSON text


class Piece(Struct, frozen=True, kw_only=True, tag=True):
    """More of the answer. All of it may be empty while characters or stop strings are held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ChosenToken, ...] = ()  # one per token id, if requested
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


class Finished(Struct, frozen=True, kw_only=True, tag=True):
    """The last event: the answer is complete."""

    reason: FinishReason
    completion_tokens: int
    timings: Timings
    stop_text: str | None = None  # which of `GenerationRequest.stop` ended it


Progress: TypeAlias = Waiting | Loading | Reading
"""Says why nothing comes at the moment. It is no part of the answer, and is not kept."""
GenerationEvent: TypeAlias = Progress | Started | Piece | Finished


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The last server-sent event of POST /cluster/answers, if the answer broke off."""

    error: Error
