"""Between which heads the mixers of a layer are cut for the ranks of a group: of weights and of caches alike."""

from functools import lru_cache
from math import inf
from typing import TypeAlias

from potluck.model.formats import BLOCK_ROWS
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mixers import AttentionSpec

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Of each range its first number, and the one after its last."""
Parts: TypeAlias = tuple[int, ...]
"""Of each rank in their order, how much it has in relation to the others."""
Cuts: TypeAlias = tuple[int, ...]
"""Rank r has the heads from cut r up to cut r + 1."""


def attention_cuts(spec: AttentionSpec, parts: Parts, block: int) -> Cuts | None:
    """Of heads of queries; None: each rank has all of it.

    Args:
        spec: of the whole layer.
        parts: of the ranks.
        block: numbers of a row that are packed together; 1: none are.
    """
    # The norm of a whole projection would need sums of its own, and an indexer chooses for all heads.
    if spec.qk_norm == "projection" or spec.index is not None:
        return None
    if spec.gives is not None or spec.takes is not None:  # all heads of keys go along
        return None
    # Of gates a head has one row.
    step = BLOCK_ROWS if block > 1 and spec.gate is not None and spec.gate.of_heads else 1
    group, sizes = spec.heads // spec.kv_heads, (spec.head_dim, spec.value_dim)
    return _cut_heads(spec.heads, group, sizes, parts, block, step)


def key_heads(spec: AttentionSpec, first: int, last: int) -> tuple[int, int]:
    """The heads of keys that these heads of queries look at."""
    group = spec.heads // spec.kv_heads
    return first // group, -(-last // group)


def latent_cuts(spec: LatentSpec, parts: Parts, block: int) -> Cuts | None:
    """Of heads, which all look at the same latents; None: each rank has all of it."""
    return _cut_heads(spec.heads, 1, (spec.value_dim, spec.query_dim), parts, block)


def delta_cuts(spec: DeltaNetSpec, parts: Parts, block: int) -> Cuts | None:
    """Of heads of keys, with the heads of values that are theirs; None: each rank has all of it."""
    return _cut_heads(spec.key_heads, 1, (spec.key_size, spec.value_size), parts, block)


def delta_heads(spec: DeltaNetSpec, first: int, last: int) -> tuple[Ranges, Ranges]:
    """These heads of keys, and the heads of values that are theirs."""
    values: Ranges = ((first * spec.group, last * spec.group),)
    if spec.has_tiled_heads:
        starts = range(0, spec.value_heads, spec.key_heads)
        values = tuple((start + first, start + last) for start in starts)
    return ((first, last),), values


def delta_channels(spec: DeltaNetSpec, keys: Ranges, values: Ranges) -> Ranges:
    """The numbers of these heads that go through the convolution: queries, keys, values."""
    return (
        *times(keys, spec.key_size),
        *times(keys, spec.key_size, spec.keys_size),
        *times(values, spec.value_size, 2 * spec.keys_size),
    )


def times(ranges: Ranges, size: int, place: int = 0) -> Ranges:
    """The numbers of items in these ranges, of `size` each, the first of which is at this place."""
    return tuple((place + first * size, place + last * size) for first, last in ranges)


@lru_cache(maxsize=256)
def _cut_heads(
    heads: int,
    group: int,
    sizes: tuple[int, ...],
    parts: tuple[int, ...],
    block: int,
    step: int = 1,
) -> tuple[int, ...] | None:
    """Where the heads of queries are cut for ranks of these parts; None: there is no such cut.

    A rank has whole groups of heads that share a key head, or some heads of one group, whose key head other
    ranks then have too. `sizes` are how many rows or columns of matrices a head has; all cuts but the last are
    multiples of `step`. Of such cuts, the one by which the slowest rank has the least to do.
    """
    best: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {0: ((0.0, 0.0), (0,))}
    for part in parts:
        after: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {}
        for first, ((most, squares), cuts) in best.items():
            for last in range(first + 1, heads + 1):
                is_between = last == heads or last % step == 0
                if not (is_between and _is_part(first, last, heads, group, sizes, block)):
                    continue
                load = (last - first) / part
                cost = max(most, load), squares + load * load * part
                if cost < after.get(last, ((inf, inf), ()))[0]:
                    after[last] = cost, (*cuts, last)
        best = after
    return best[heads][1] if heads in best else None


def _is_part(
    first: int, last: int, heads: int, group: int, sizes: tuple[int, ...], block: int
) -> bool:
    """Whether a rank may have these heads of queries."""
    has_groups = first % group == 0 and last % group == 0
    if not has_groups and first // group != (last - 1) // group:
        return False
    if block == 1:
        return True
    ends = [end for end in (first, last) if end not in (0, heads)]
    if any(end * size % block for end in ends for size in sizes):
        return False
    start, stop = first // group, -(-last // group)
    return not ends or all(keys * sizes[0] % BLOCK_ROWS == 0 for keys in (start, stop - start))
