"""Measurements of one answer, which every API sends with it. Pure."""

from msgspec import Struct


class StageTiming(Struct, frozen=True, kw_only=True):
    node: str  # name of the computer
    compute_ms: float  # median of one token


class Timings(Struct, frozen=True, kw_only=True):
    """The object `potluck` in the last chunk, or in the whole answer."""

    time_to_first_token_s: float
    tokens_per_s: float  # of decoding, without the first token
    prefill_tokens: int = 0  # computed for this answer
    cached_tokens: int = 0  # tokens of the prompt that were found in the KV caches
    guessed_tokens: int = 0  # of the answer: they came with others in one step
    stages: tuple[StageTiming, ...] = ()
    hop_ms: float | None = None  # for one token: time in which no stage computes
