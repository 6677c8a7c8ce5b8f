"""Messages along the chain of stages: from the driver through all stages, and back to it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from potluck.model.caches import MAX_CHUNK_TOKENS
from potluck.model.limits import MAX_HIDDEN, MAX_VOCAB
from potluck.wire.fields import Count, Hex, Seconds, SessionName, Shape
from potluck.wire.messages import MAX_TOKENS, Message

Dtype = Literal["F32", "F16", "BF16", "I32", "I64", "U8", "I8"]  # as safetensors names them

MAX_HISTORY = 1 << 17  # tokens that penalties look at; 5 bytes each at most
MAX_BIASES = 1024  # tokens with a bias; OpenAI allows 300
MAX_DRAFTS = 15  # guesses of one step
PREFIX_TOKENS = 64  # tokens of a session's beginning that one digest names, with all before them
PREFIX_BYTES = 16  # of such a digest


class Attach(Message, frozen=True, tag="attach"):
    """From the driver to the last stage: send this epoch's results to me, on this connection."""

    epoch: Count


class OpenSession(Message, frozen=True, tag="open_session"):
    """Open a session, with an empty KV cache or with the beginning of another session's."""

    epoch: Count
    session: SessionName
    source: SessionName | None = None  # that other session; None: the cache is empty
    position: Count = 0  # how many of its tokens to begin with, or as many as are cached


_Prefix = Annotated[bytes, Meta(max_length=MAX_TOKENS // PREFIX_TOKENS * PREFIX_BYTES)]


class KeepSession(Message, frozen=True, tag="keep_session"):
    """The digests of a session's first tokens, under which stages may keep its cache on disk."""

    epoch: Count
    session: SessionName
    prefix: _Prefix


class RestoreSession(Message, frozen=True, tag="restore_session"):
    """Let an empty session begin with tokens that are kept on disk. Answered by `result`."""

    epoch: Count
    session: SessionName
    step: Count
    position: Count  # tokens of use, or that all stages before have restored
    prefix: _Prefix


class TokenBias(msgspec.Struct, frozen=True):
    """What is added to the logit of a token."""

    token_id: Count
    bias: Annotated[float, Meta(ge=-100, le=100)]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the stage with the head samples a token: seed and position make it reproducible."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # 0: greedy
    top_k: Count = 0  # 0: no limit
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # n: of the chosen and the n best
    history: Annotated[tuple[Count, ...], Meta(max_length=MAX_HISTORY)] | None = None
    """The token ids so far, sent with a prompt's last chunk if a penalty needs them."""
    presence_penalty: Annotated[float, Meta(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-100, le=100)] = 0.0
    answer_start: Count = 0  # position of its first token; these two penalties count the answer's
    logit_bias: Annotated[tuple[TokenBias, ...], Meta(max_length=MAX_BIASES)] = ()
    allowed: (
        Annotated[bytes, Meta(max_length=MAX_VOCAB // 8)]
        | Annotated[tuple[Count, ...], Meta(max_length=MAX_VOCAB // 32)]
        | None
    ) = None
    """The tokens that a grammar allows: their ids, or one bit for each token of the vocabulary, the lowest
    bit of the first byte for token 0. None: all."""
    embeds: bool = False  # the hidden state of the last token is wanted as well

    @property
    def needs_history(self) -> bool:
        """Whether a penalty looks at the tokens so far."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def is_changed(self) -> bool:
        """Whether logits are changed before one is chosen."""
        return self.needs_history or bool(self.logit_bias) or self.allowed is not None


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the log-probabilities of tokens that are known: those of a prompt."""

    targets: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_CHUNK_TOKENS)]
    """The token that follows each token of the step, or the first ones of it."""
    top: Annotated[int, Meta(ge=0, le=20)] = 0  # so many of the best tokens at each position, too


class TensorHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a payload of numbers, which is row-major and little-endian."""

    dtype: Dtype
    shape: Shape


class PictureRows(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a step that are rows of a picture, one after the other."""

    picture: Hex
    first: Count  # number of the first one in the picture
    begin: Count  # its place in the step
    rows: Annotated[int, Meta(ge=1, le=MAX_CHUNK_TOKENS)]


class StepPictures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step says of the pictures in it, and of those before it."""

    rows: Annotated[tuple[PictureRows, ...], Meta(max_length=MAX_CHUNK_TOKENS)] = ()
    lag: Count = 0
    """By how much rope's position is less than `position`: where rope counts a picture's longer side alone."""
    places: Annotated[bytes, Meta(max_length=12 * MAX_CHUNK_TOKENS)] = b""
    """In place of `lag`, rope's positions by time, row and column (I32, [3, T]), of a step with rows of pictures."""


class Forward(Message, frozen=True, tag="forward"):
    """Run these tokens of a session. Payload: token ids (I32, [T]) or hidden states ([T, D]).

    Behind these may be columns with the positions that an earlier layer has chosen (`engine/layers/choosing.py`).
    """

    epoch: Count
    session: SessionName
    step: Count  # increases by one in a session; a repeated step gets its stored result
    position: Count  # of the first token; must equal the end of the stage's cache
    tensor: TensorHeader
    prompt_end: Count | None = None
    """Where the KV caches will end after the last chunk of a prompt. A stage makes room for the
    whole prompt before it computes the first chunk. None: no chunk follows."""
    sampling: Sampling | None = None  # None: no token is needed (a prompt's earlier chunk)
    scoring: Scoring | None = None
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()
    """One per stage so far; none of a stage that computed the token together with others."""
    more: Count = 0  # so many messages follow at once whose tokens are to be computed with this one
    rank_step: Count = 0
    """From rank 0 of a group to its other ranks: which of its steps this is, counted from 1."""
    ids: Annotated[bytes, Meta(max_length=4 * MAX_CHUNK_TOKENS)] = b""
    """Beside hidden states, the ids of the tokens (I32, [T]), if a layer of a later stage looks at them."""
    pictures: StepPictures | None = None  # None: it is text, and so is all before it
    drafts: Annotated[tuple[Count, ...], Meta(max_length=MAX_DRAFTS)] = ()
    """Guesses at what follows the step's first token: they are its other tokens. The last stage chooses the token after
    each as it would one by one, up to the first that was not guessed, and all stages forget the guesses from there on."""


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token id and the natural logarithm of its probability."""

    token_id: Count
    logprob: float


class TokenScore(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a target, and the best tokens at its position."""

    logprob: float
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=20)] = ()


class ChosenToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token that was chosen before the last one of a step."""

    token_id: Count
    logprob: float | None = None
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=20)] = ()


class Result(Message, frozen=True, tag="result"):
    """From the last stage to the driver: the sampled token, or that the chunk is done."""

    epoch: Count
    session: SessionName
    step: Count
    position: Count  # where every cache of the chain ends now
    token_id: Count | None = None
    logprob: float | None = None
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=20)] = ()
    scores: Annotated[tuple[TokenScore, ...], Meta(max_length=MAX_CHUNK_TOKENS)] = ()
    """Of the targets, in their order."""
    embedding: Annotated[bytes, Meta(max_length=4 * MAX_HIDDEN)] = b""
    """The hidden state of the last token after the final norm, [D] in F32, if it was wanted."""
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()
    more: Count = 0  # so many results follow at once of tokens that were computed with this one
    accepted: Annotated[tuple[ChosenToken, ...], Meta(max_length=MAX_DRAFTS)] = ()
    """The tokens before `token_id` that were chosen as they were guessed."""


class TrimSession(Message, frozen=True, tag="trim_session"):
    """Remove this position and all later ones from the session's KV cache."""

    epoch: Count
    session: SessionName
    position: Count


class CloseSession(Message, frozen=True, tag="close_session"):
    """Free the KV cache of a session."""

    epoch: Count
    session: SessionName
