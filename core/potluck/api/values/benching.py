"""The values of the local API for measuring a model. See `potluck.api.values.schema`."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from potluck.api.values.errors import Error
from potluck.api.values.schema import LoadProgress, PlanRequest, ThreadCount
from potluck.model.schemes import Scheme

SessionCount: TypeAlias = Annotated[int, Meta(ge=1, le=64)]


class BenchRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/bench, answered by `BenchProgress`es."""

    plan: PlanRequest
    prompt: Annotated[int, Meta(ge=1, le=1 << 20)] = 512  # tokens of a long prompt
    tokens: Annotated[int, Meta(ge=1, le=1 << 16)] = 64  # tokens to decode after a short prompt
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 5  # runs of each of the two
    # numbers of sessions that decode at the same time, each measured once after these runs
    sessions: Annotated[tuple[SessionCount, ...], Meta(max_length=16)] = ()
    # so many tokens are cached, and then both are measured again; 0: they are not
    depth: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    threads: ThreadCount | None = None  # compute threads of this computer during the bench


class BenchStage(Struct, frozen=True, kw_only=True):
    """What one computer did. Times in milliseconds are medians for one token."""

    node: str  # name of the computer
    device: str
    layers: tuple[int, int]  # start, stop
    # Bytes that one token reads: without the embedding, and without experts that are not chosen.
    weight_bytes: int
    read_bytes_per_s: float  # of reading only these weights, in the same run
    floor_ms: float  # (weight_bytes + cache_bytes) / read_bytes_per_s
    compute_ms: float
    predicted_ms: float
    layer_ms: float  # for one layer; 0 if the stage has none
    head_ms: float  # 0 if the stage has no head
    cache_bytes: int = 0  # of the caches that one token reads, after a short prompt


class BenchDepth(Struct, frozen=True, kw_only=True):
    """The same figures in the middle of a long conversation. Medians."""

    cached: int  # tokens of the conversation before what was measured
    cache_bytes: int  # that one token reads there, in all stages
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    floor_tokens_per_s: float  # if every stage only read its weights and its caches
    floor_fraction: float  # decode / floor
    predicted_tokens_per_s: (
        float  # as planned, with the times that computers measured in long conversations
    )
    predicted_prefill_tokens_per_s: float = 0.0  # 0: an older node does not say


class BenchSessions(Struct, frozen=True, kw_only=True):
    """So many sessions at the same time, each with a short prompt."""

    n: int
    tokens_per_s: float  # of all together, from the first token of any to the last of any
    slowest_tokens_per_s: float  # of the session that was slowest
    first_token_s: float  # until the last of them had its first token


class BenchSum(Struct, frozen=True, kw_only=True):
    """What a sum takes of two processes that may compute layers together, as it was measured alone."""

    nodes: tuple[str, str]  # names of their computers, which may be the same
    token_ms: float
    chunk_ms: float
    chunk_tokens: int


class BenchResult(Struct, frozen=True, kw_only=True):
    """The measured figures, and the best possible ones. Medians."""

    shape: str  # the shape, or the name of the model
    scheme: Scheme
    prompt: int
    tokens: int
    repeat: int
    stages: tuple[BenchStage, ...]
    weight_bytes: int  # of all stages
    decode_tokens_per_s: float  # after a short prompt
    prompt_decode_tokens_per_s: float  # after the long one
    prefill_tokens_per_s: float
    floor_tokens_per_s: (
        float  # if every stage only read its weights and caches, and hops took no time
    )
    floor_fraction: float  # decode / floor
    token_ms: float  # one token through the pipeline
    hop_ms: float  # the part of token_ms in which no stage computes
    link_ms: float  # the time of the links alone, measured before the tokens
    layer_ms: float  # for one layer, mean of all layers
    predicted_tokens_per_s: float
    predicted_prefill_tokens_per_s: float = 0.0  # 0: an older node does not say
    sessions: tuple[BenchSessions, ...] = ()  # in the order of the request
    depth: BenchDepth | None = None  # if the request asked for it
    sums: tuple[BenchSum, ...] = ()  # that were measured, of the computers that are here


class BenchProgress(Struct, frozen=True, kw_only=True):
    """One server-sent event of POST /cluster/bench. `ready` and `failed` are the last ones."""

    state: Literal["loading", "measuring", "ready", "failed"]
    fraction: float = 0.0  # 0 to 1, within this state
    message: str = ""
    load: LoadProgress | None = None  # with `loading`, and with `failed` if that failed
    result: BenchResult | None = None  # with `ready`
    error: Error | None = None  # with `failed`
