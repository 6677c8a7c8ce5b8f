"""What a layer caches is read back as it was written, wherever its rows move."""

import sys
from dataclasses import replace

import psutil
import pytest
import torch
from cache_pools import CPU, FULL, ROW, WINDOW, A, B, make_pool

from potluck.engine.caches.kvcache import GRANULE, IndexedCache, LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.caches.new_cache import new_cache
from potluck.engine.caches.state_cache import StateCache
from potluck.model.cache_rows import KeysAndValues, Latent, State
from potluck.model.caches import CacheSpec, FullCache, RecurrentCache, WindowCache

LATENT = Latent(rank=6, rope=4, number_bytes=4)
STATE = RecurrentCache(row=State(shapes=((2, 3), (5,))), checkpoints=3, every=10)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_what_was_written_is_read_back_keys_before_values(tokens: int) -> None:
    cache = LayerCache(3, 4, torch.float32, CPU)
    cache.resize(10, 0)
    kv = torch.randn(tokens, 6, 4)

    cache.write(2, kv)

    keys, values = cache.read(2, tokens, torch.float32)
    assert torch.equal(keys, kv[None, :, :3].transpose(1, 2))
    assert torch.equal(values, kv[None, :, 3:].transpose(1, 2))


def test_memory_is_that_of_the_device_which_computes() -> None:
    device = torch.device("meta")
    cache = LayerCache(3, 4, torch.float16, device)

    cache.resize(10, 0)

    assert cache.both.device == device


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise elsewhere")
@pytest.mark.parametrize("tokens", [GRANULE, 1100], ids=["small", "with huge pages"])
def test_memory_goes_back_to_the_system_when_a_cache_is_let_go(tokens: int) -> None:
    torch.zeros(30_000_000, dtype=torch.uint8)  # glibc keeps what is smaller than this from here on
    caches = [LayerCache(8, 64, torch.float16, CPU) for _ in range(32)]
    for number in range(len(caches)):
        caches[number].resize(tokens, 0)
    nbytes = sum(cache.both.nbytes for cache in caches)
    before = psutil.Process().memory_info().rss

    caches.clear()

    assert psutil.Process().memory_info().rss < before - 0.9 * nbytes


def test_int8_is_read_back_with_the_scale_of_its_head() -> None:
    cache = LayerCache(3, 4, torch.int8, CPU)
    cache.resize(10, 0)
    kv = torch.randn(5, 6, 4) * torch.logspace(-3, 3, 6)[:, None]

    cache.write(2, kv)
    cache.write(7, kv[:1])
    cache.resize(20, 8)

    step = kv.abs().amax(-1, keepdim=True) / 127
    for heads, read in zip((slice(3), slice(3, 6)), cache.read(2, 5, torch.float32), strict=True):
        assert ((read[0].transpose(0, 1) - kv[:, heads]).abs() <= 0.51 * step[:, heads]).all()
    assert torch.equal(cache.read(7, 1, torch.float32)[0], cache.read(2, 1, torch.float32)[0])


def test_growing_keeps_every_token() -> None:
    cache = LayerCache(3, 4, torch.float32, CPU)
    cache.resize(4, 0)
    kv = torch.randn(4, 6, 4)
    cache.write(0, kv)
    before = [part.clone() for part in cache.read(0, 4, torch.float32)]

    cache.resize(9, 4)

    assert all(
        torch.equal(*pair) for pair in zip(cache.read(0, 4, torch.float32), before, strict=True)
    )


def test_a_window_stays_where_it_is_while_the_layers_beside_it_grow() -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 200)
    full, window = (layer.both for layer in cache.layers)

    pool.reserve(A, 300)

    assert cache.layers[0].both is not full
    assert cache.layers[1].both is window


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_rows_that_moved_hold_the_same_positions(dtype: torch.dtype) -> None:
    cache = LayerCache(3, 4, dtype, CPU)
    cache.resize(20, 0)
    kv = torch.randn(20, 6, 4)
    cache.write(0, kv)
    before = cache.read(7, 13, torch.float32)
    before = [part.clone() for part in before]

    cache.advance((3,), 20)  # by less than stays: row by row would overlap
    cache.advance((7,), 20)

    assert all(
        torch.equal(*pair) for pair in zip(cache.read(7, 13, torch.float32), before, strict=True)
    )
    cache.write(20, kv[:7])
    assert torch.equal(cache.read(7, 13, torch.float32)[0], before[0])


def test_who_knows_where_a_cache_is_can_tell_when_its_rows_have_moved() -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 1000)
    cache.begin_step(0, 50)
    place = cache.place

    cache.begin_step(120, 30)
    assert cache.place is place  # it fits
    cache.begin_step(120, 31)
    assert cache.place is not place
    assert [layer.first for layer in cache.layers] == [0, 1]


def test_a_session_is_trimmed_to_where_all_of_its_layers_can_go_on() -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 1000)
    for position in range(0, 500, 50):
        cache.begin_step(position, 50)
    first = cache.layers[1].first

    cache.trim(first + 99)
    assert (cache.length, cache.layers[1].first) == (first + 99, first)
    cache.trim(first + 98)
    assert (cache.length, cache.layers[1].first) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tokens", [1, 5])
def test_latent_rows_are_keys_and_their_first_numbers_are_values(
    dtype: torch.dtype, tokens: int
) -> None:
    cache = LatentCache(LATENT, dtype, CPU)
    cache.resize(4, 0)
    latents = torch.randn(2 + tokens, 10).to(dtype)
    cache.write(0, latents[:2])
    cache.resize(10, 2)
    cache.write(2, latents[2:])

    keys, values = cache.read(1, 1 + tokens, dtype)

    assert torch.equal(keys, latents[None, None, 1:])
    assert torch.equal(values, keys[..., :6])
    assert values.untyped_storage().data_ptr() == cache.both.untyped_storage().data_ptr()
    assert cache.read(0, 1, torch.float64)[0].dtype == torch.float64


def test_in_int8_each_part_of_a_latent_row_has_a_scale_of_its_own() -> None:
    cache = LatentCache(LATENT, torch.int8, CPU)
    cache.resize(10, 0)
    latents = torch.randn(5, 10) * torch.tensor([0.01] * 6 + [100.0] * 4)

    cache.write(3, latents)

    keys, values = cache.read(3, 5, torch.float32)
    for part, read in ((latents[:, :6], values), (latents[:, 6:], keys[..., 6:])):
        step = part.abs().amax(-1, keepdim=True) / 127
        assert ((read[0, 0] - part).abs() <= 0.51 * step).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_an_indexer_has_a_head_beside_keys_and_values(dtype: torch.dtype) -> None:
    row = KeysAndValues(heads=2, size=6, number_bytes=dtype.itemsize, index=4)
    cache = new_cache(FullCache(row=row), dtype, CPU)
    assert isinstance(cache, IndexedCache)
    cache.resize(9, 0)
    kv, tokens, blocks = torch.randn(9, 4, 6), torch.randn(9, 4), torch.randn(3, 4)
    off = 0.02 if dtype == torch.int8 else 0.0

    cache.write(0, kv)
    cache.write_index(0, 0, tokens)
    cache.write_index(1, 2, blocks, 3)

    def check() -> None:
        keys, values = cache.read(cache.first, 9 - cache.first, torch.float32)
        assert torch.allclose(keys[0], kv[cache.first :, :2].transpose(0, 1), off, off)
        assert torch.allclose(values[0], kv[cache.first :, 2:].transpose(0, 1), off, off)
        assert torch.allclose(cache.read_index(0, 1, 8), tokens[1:8], off, off)
        assert torch.allclose(cache.read_index(1, 2, 9, 3), blocks, off, off)
        chosen = torch.tensor([0, 3, 8])
        alone = cache.gather(chosen)
        assert alone.shape[:3] == (2, 2, 3)
        if dtype == torch.float32:
            assert torch.equal(alone[0], kv[chosen, :2].transpose(0, 1))

    check()
    cache.share(4, 9)  # the first rows are now in memory that others have too
    assert cache.first == 4
    check()


def test_latent_rows_of_a_window_move_as_others_do() -> None:
    cache = LatentCache(LATENT, torch.float32, CPU)
    cache.resize(8, 0)
    latents = torch.randn(8, 10)
    cache.write(0, latents)

    cache.advance((3,), 8)

    assert torch.equal(cache.read(3, 5, torch.float32)[0][0, 0], latents[3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_memory_is_as_large_as_the_specification_says(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    specs: list[CacheSpec] = [
        FullCache(row=replace(ROW, number_bytes=size)),
        FullCache(row=replace(LATENT, number_bytes=size)),
        WindowCache(row=replace(LATENT, number_bytes=size), window=9, chunk=20, slack=10),
        STATE,
    ]

    for spec in specs:
        cache = new_cache(spec, dtype, CPU)
        assert cache.both.nbytes == spec.nbytes(0) == 0
        cache.resize(spec.rows(500), 0)
        assert cache.both.nbytes == spec.nbytes(500) > 0


def test_a_state_has_parts_that_stay_where_they_are_and_begin_with_zeros() -> None:
    cache = StateCache(STATE, CPU)
    cache.resize(STATE.rows(1), 0)
    cache.both.fill_(7)

    matrix, vector = cache.state(0)
    assert (matrix.shape, vector.shape) == ((2, 3), (5,))
    assert not matrix.any()
    assert not vector.any()
    vector.fill_(3)
    assert torch.equal(cache.state(1)[1], torch.full((5,), 3.0))


def test_a_session_with_a_state_is_trimmed_to_a_checkpoint_and_the_other_layers_with_it() -> None:
    cache = make_pool(WINDOW, STATE, FULL).open(A)
    cache.resize(1000)
    for position in range(0, 500, 50):
        cache.begin_step(position, 50)
    window, state, _ = cache.layers
    lowest = window.first + 99  # that the window can be trimmed to
    assert sorted(state.held)[-2:] == [400, 450]
    assert 400 < lowest < 450

    cache.trim(480)
    assert cache.length == 450
    cache.trim(lowest)  # the window could, but not at the checkpoint before it
    assert (cache.length, window.first, state.held) == (0, 0, (0, 0, 0))


def test_two_kinds_of_states_go_back_to_a_position_of_both() -> None:
    cache = make_pool(STATE, replace(STATE, every=15)).open(B)
    cache.resize(1000)
    for position in range(46):
        cache.begin_step(position, 1)
    assert [layer.held for layer in cache.layers] == [(40, 20, 30), (15, 30, 45)]

    cache.trim(44)

    assert cache.length == 30


def test_memory_that_was_reserved_is_not_free_any_more() -> None:
    cache = LayerCache(64, 64, torch.float32, CPU)
    before = psutil.Process().memory_info().rss

    cache.resize(2048, 0)

    assert psutil.Process().memory_info().rss - before > 0.9 * cache.both.nbytes == 0.9 * (1 << 26)
