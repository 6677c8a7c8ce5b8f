"""With how many cached tokens a model's layers are measured, for which times at other depths are planned."""

from collections.abc import Sequence
from statistics import fmean

from potluck.model.caches import CacheSizes, CacheSpec
from potluck.model.config import ModelConfig

CACHED = 256  # tokens in the cache while one token is timed: a short chat
# A long chat. A token's time is the mean of both only if some layers have a window and others see all tokens, since only
# then do their costs differ: a full layer of Gemma 3 (4B, int4) takes a quarter more than one with a window.
LONG_CACHED = 4096


def cached_tokens(config: ModelConfig) -> tuple[int, ...]:
    """How many tokens are in the cache while one is timed; each number is timed once."""
    sizes = CacheSizes(number_bytes=2)
    if len({layer.cache(sizes) for layer in config.layers}) == 1:
        return (CACHED,)
    return CACHED, deep_tokens(config)


def deep_tokens(config: ModelConfig) -> int:
    """How many tokens are in the cache while it is timed what a layer takes longer in a long conversation."""
    return max(CACHED, min(LONG_CACHED, config.max_position - 1))


def token_read(cache: CacheSpec, depths: Sequence[int]) -> float:
    """Bytes of a layer's cache that one token reads after so many others, as the mean of these numbers."""
    return fmean(cache.read_bytes(depth + 1) for depth in depths)


def chunk_read(cache: CacheSpec, position: int, tokens: int) -> float:
    """Bytes of a layer's cache that the tokens of a chunk read, as the mean of them."""
    return cache.read_bytes(position + (tokens + 1) // 2)
