"""How much longer tokens take the more is cached before them, from what a device has measured at two depths.

What grows is attention, in proportion to the bytes of the cache that a token reads: layers with a window stop to grow there,
and recurrent ones never do.
"""

from collections.abc import Sequence

from potluck.model.measured import Depths
from potluck.plan.cost import ModelShape
from potluck.plan.stages import Plan


def token_read_ms(
    shape: ModelShape, decode_ms: Sequence[float], deep_ms: Sequence[float], deep: int
) -> tuple[float, ...]:
    """`DeviceCost.token_read_ms` of times as of `Profiled`, with `deep` tokens cached for the later ones."""
    return tuple(
        Depths(cache, 1).token_slope(before, after, shape.depths, deep)
        for before, after, cache in zip(decode_ms, deep_ms, shape.caches, strict=False)
    )


def chunk_read_ms(
    shape: ModelShape, prefill_ms: Sequence[float], deep_ms: Sequence[float], deep: int, chunk: int
) -> tuple[float, ...]:
    """`DeviceCost.chunk_read_ms` of the times of chunks of so many tokens; see `token_read_ms`."""
    return tuple(
        Depths(cache, chunk).chunk_slope(before, after, deep) / chunk
        for before, after, cache in zip(prefill_ms, deep_ms, shape.caches, strict=False)
    )


def token_after_ms(shape: ModelShape, plan: Plan, cached: int) -> float:
    """The time of one user's next token after so many."""
    longer = (shape.token_longer_ms(stage.token_read_ms, cached) for stage in plan.pipeline)
    return max(0.0, plan.token_ms + sum(longer))
