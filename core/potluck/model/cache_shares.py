"""Which part of what a layer caches each rank of a group has, so that caches move between stages that are cut in other ways.

What is cached lies in lanes side by side: the heads of keys and values, or the numbers of a recurrent state. A rank has
some lanes of a layer that is cut, and all of any other; a whole stage has all. Lanes have their numbers in the whole layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

from potluck.model.cache_rows import KeysAndValues, Row, State
from potluck.model.caches import CacheSizes, CacheSpec, PooledCache, RowsAndStateCache
from potluck.model.config import ModelConfig
from potluck.model.head_cuts import (
    Ranges,
    attention_cuts,
    delta_channels,
    delta_cuts,
    delta_heads,
    key_heads,
    times,
)
from potluck.model.layers import LayerSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.schemes import Scheme
from potluck.model.shares import Share, block_of

Lanes: TypeAlias = tuple[Ranges, ...]
"""Of each part of a layer's cache, in the order in which they lie in memory."""

_SIZES = CacheSizes(number_bytes=4)  # lanes do not depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShares:
    """The lanes that a stage has, and those that it gives to others.

    Attributes:
        config: of the whole model.
        scheme: of the weights, on which the cuts depend.
        share: of each layer; None: all of it.
    """

    config: ModelConfig
    scheme: Scheme = "f32"
    share: Share | None = None

    def held(self, layer: int) -> Lanes:
        """The lanes that the stage has of a layer."""
        return _lanes(self.config.layers[layer], self.share, block_of(self.scheme))

    def common(self, layer: int, to: Share | None) -> Lanes:
        """Those of them that another stage has, too."""
        return _both(self.held(layer), self._lanes_of(layer, to))

    def given(self, layer: int, to: Share | None, had: int | None = None) -> Lanes:
        """The lanes that the stage gives to another one: each lane comes from the first rank that has it.

        Args:
            layer: its number.
            to: the share of the other stage; None: it has whole layers.
            had: the rank of this group that the other one's process was itself, whose lanes it has already; None: none.
        """
        found = self.common(layer, to)
        if self.share is None:
            return found
        others = (*range(self.share.rank), *(() if had is None else (had,)))
        for rank in others:
            other = replace(self.share, rank=rank)
            found = lanes_without(found, self._lanes_of(layer, other))
        return found

    def _lanes_of(self, layer: int, share: Share | None) -> Lanes:
        return replace(self, share=share).held(layer)


@lru_cache(maxsize=1024)
def _lanes(spec: LayerSpec, share: Share | None, block: int) -> Lanes:
    whole = tuple(((0, count),) if count else () for count in _counts(spec.cache(_SIZES)))
    cut = None if share is None else _cut(spec, share, block)
    return whole if cut is None else (cut, *whole[1:])


def _counts(cache: CacheSpec) -> Iterator[int]:
    """How many lanes each part of a cache has."""
    if isinstance(cache, RowsAndStateCache):
        yield _count(cache.tokens.row)
        yield _count(cache.state.row)
    elif isinstance(cache, PooledCache):
        yield from (1, 1)
    else:
        yield _count(cache.row)


def _count(row: Row) -> int:
    if isinstance(row, KeysAndValues):
        return row.heads + (row.index > 0)
    return row.numbers if isinstance(row, State) else 1


def _cut(spec: LayerSpec, share: Share, block: int) -> Ranges | None:
    """The lanes of a rank; None: all."""
    match spec.mixer:
        case AttentionSpec() as mixer:
            cuts = attention_cuts(mixer, share.parts, block)
            if cuts is None:
                return None
            return (key_heads(mixer, cuts[share.rank], cuts[share.rank + 1]),)
        case DeltaNetSpec() as mixer:
            cuts = delta_cuts(mixer, share.parts, block)
            if cuts is None:
                return None
            own = _delta_numbers(mixer, cuts[share.rank], cuts[share.rank + 1])
            first = sum(map(prod, (mixer.before_shape, mixer.state_shape)))
            behind = 0 if spec.ngrams is None else sum(map(prod, spec.ngrams.state))
            return (*own, (first, first + behind)) if behind else own
        case _:
            return None  # all ranks have what is cached for all heads together


def _delta_numbers(mixer: DeltaNetSpec, first: int, last: int) -> Ranges:
    """The numbers of the state that belong to these heads of keys: inputs of the convolution, then matrices."""
    keys, values = delta_heads(mixer, first, last)
    channels, (inputs, width) = delta_channels(mixer, keys, values), mixer.before_shape
    before = (one for row in range(inputs) for one in times(channels, 1, row * width))
    _, *matrix = mixer.state_shape
    return (*before, *times(values, prod(matrix), inputs * width))


# --- ranges


def lanes_without(some: Lanes, others: Lanes) -> Lanes:
    """Those of some lanes of a layer that are not among others."""
    return tuple(tuple(_rest(mine, theirs)) for mine, theirs in zip(some, others, strict=True))


def _both(some: Lanes, others: Lanes) -> Lanes:
    return tuple(
        tuple(
            (max(first, begin), min(last, end))
            for first, last in mine
            for begin, end in theirs
            if max(first, begin) < min(last, end)
        )
        for mine, theirs in zip(some, others, strict=True)
    )


def _rest(mine: Ranges, theirs: Ranges) -> Iterator[tuple[int, int]]:
    for first, last in mine:
        for begin, end in sorted(theirs):
            if first < min(begin, last):
                yield first, min(begin, last)
            first = max(first, end)
        if first < last:
            yield first, last
