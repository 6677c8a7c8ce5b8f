"""The lanes of ranks are those of the whole cache, and each is given once."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from potluck.model.cache_rows import KeysAndValues, State
from potluck.model.cache_shares import CacheShares, lanes_without
from potluck.model.caches import CacheSizes, CacheSpec, PooledCache, RowsAndStateCache
from potluck.model.config import ModelConfig
from potluck.model.head_cuts import Ranges
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.schemes import Scheme
from potluck.model.shapes.table import SHAPES
from potluck.model.shares import Share, share_layer

SIZES = CacheSizes(number_bytes=2)
PARTS = ((1, 1), (2, 1), (1, 1, 1, 1), (3, 2, 2), (1,) * 8)


def counts(cache: CacheSpec) -> Iterator[int]:
    """Heads, or numbers of a state, of each part of a cache."""
    rows = cache.row, cache.row
    if isinstance(cache, RowsAndStateCache):
        rows = cache.tokens.row, cache.state.row
    elif not isinstance(cache, PooledCache):
        rows = (cache.row,)
    for row in rows:
        if isinstance(row, KeysAndValues):
            yield row.heads + (row.index > 0)
        else:
            yield row.numbers if isinstance(row, State) else 1


def size(ranges: Ranges) -> int:
    return sum(last - first for first, last in ranges)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same lanes in their order. None may come twice."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        assert not found or found[-1][1] <= first
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def kinds(config: ModelConfig) -> Iterator[int]:
    """A layer of each kind."""
    seen = set[object]()
    for layer, spec in enumerate(config.layers):
        if spec.kind not in seen:
            seen.add(spec.kind)
            yield layer


@pytest.mark.parametrize("scheme", ["f32", "int4"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_ranks_have_what_their_layers_cache_and_give_the_whole_once(
    name: str, scheme: Scheme
) -> None:
    config = ModelConfig.from_dict(dict(SHAPES[name]))
    whole = CacheShares(config=config, scheme=scheme)
    for layer in kinds(config):
        all_lanes = whole.held(layer)
        cached = counts(config.layers[layer].cache(SIZES))
        assert all_lanes == tuple(((0, n),) if n else () for n in cached)
        for parts in PARTS:
            ranks = [
                replace(whole, share=Share(rank=rank, parts=parts)) for rank in range(len(parts))
            ]
            for rank in ranks:
                assert rank.share is not None
                own = share_layer(config.layers[layer], rank.share, scheme).spec.cache(SIZES)
                assert [size(each) for each in rank.held(layer)] == list(counts(own))
                assert whole.given(layer, rank.share) == rank.held(layer)
            for index, lanes in enumerate(all_lanes):
                given = (one for rank in ranks for one in rank.given(layer, None)[index])
                assert joined(given) == list(lanes)


def test_a_process_that_was_a_rank_gets_the_rest_of_the_others() -> None:
    config = ModelConfig.from_dict(dict(SHAPES["qwen3-next-80b-a3b"]))
    whole = CacheShares(config=config)
    for layer in kinds(config):
        ranks = [replace(whole, share=Share(rank=rank, parts=(2, 1, 1))) for rank in range(3)]
        left = lanes_without(whole.held(layer), ranks[1].held(layer))
        for other in (ranks[0], ranks[2]):
            given = other.given(layer, None, had=1)
            assert not any(common(given, ranks[1].held(layer)))
            left = lanes_without(left, given)
        assert not any(left)


def common(some: tuple[Ranges, ...], others: tuple[Ranges, ...]) -> tuple[Ranges, ...]:
    return lanes_without(some, lanes_without(some, others))


def test_a_rank_of_tiled_heads_has_those_of_each_tile() -> None:
    """Value head i is of key head i modulo their number (llama.cpp)."""
    config = ModelConfig.from_dict(dict(SHAPES["qwen3-next-80b-a3b"]))
    layer, spec = next(
        (n, one) for n, one in enumerate(config.layers) if isinstance(one.mixer, DeltaNetSpec)
    )
    mixer = spec.mixer
    assert isinstance(mixer, DeltaNetSpec)
    tiled = replace(spec, mixer=replace(mixer, has_tiled_heads=True))
    config = replace(config, layers=(*config.layers[:layer], tiled, *config.layers[layer + 1 :]))
    second = CacheShares(config=config, share=Share(rank=1, parts=(1, 1))).held(layer)[0]
    half, behind = mixer.key_heads // 2, (mixer.inputs - 1) * mixer.channels
    matrix = mixer.key_size * mixer.value_size
    tiles = range(0, mixer.value_heads, mixer.key_heads)
    assert second[-mixer.group :] == tuple(
        (behind + (tile + half) * matrix, behind + (tile + mixer.key_heads) * matrix)
        for tile in tiles
    )
