"""How much longer tokens take the more is cached before them, from what a device has measured at two depths.

What grows is attention, in proportion to the bytes of the cache that a token reads: layers with a window stop to grow there,
and recurrent ones never do.
"""

from collections.abc import Sequence

from potluck.model.measured import chunk_read, token_read
from potluck.plan.cost import ModelShape
from potluck.plan.stages import Plan


def token_read_ms(
    shape: ModelShape, decode_ms: Sequence[float], deep_ms: Sequence[float], deep: int
) -> tuple[float, ...]:
    """`DeviceCost.token_read_ms` of times as of `Profiled`, with `deep` tokens cached for the later ones."""
    return tuple(
        _slope(before, after, token_read(cache, (deep,)) - token_read(cache, shape.depths))
        for before, after, cache in zip(decode_ms, deep_ms, shape.caches, strict=False)
    )


def chunk_read_ms(
    shape: ModelShape, prefill_ms: Sequence[float], deep_ms: Sequence[float], deep: int, chunk: int
) -> tuple[float, ...]:
    """`DeviceCost.chunk_read_ms` of the times of chunks of so many tokens; see `token_read_ms`."""
    return tuple(
        _slope(before, after, chunk_read(cache, deep, chunk) - chunk_read(cache, 0, chunk)) / chunk
        for before, after, cache in zip(prefill_ms, deep_ms, shape.caches, strict=False)
    )


def _slope(before_ms: float, after_ms: float, more_bytes: float) -> float:
    """Milliseconds of a byte more. A time that is no longer is noise, where little grows."""
    return max(0.0, after_ms - before_ms) / more_bytes if more_bytes > 0 else 0.0


def token_after_ms(shape: ModelShape, plan: Plan, cached: int) -> float:
    """The time of one user's next token after so many."""
    longer = (shape.token_longer_ms(stage.token_read_ms, cached) for stage in plan.pipeline)
    return max(0.0, plan.token_ms + sum(longer))
