"""What a layer caches is read back as it was written, wherever its rows move."""

import sys

import psutil
import pytest
import torch
from cache_pools import CPU, FULL, ROW, WINDOW, A, make_pool

from potluck.engine.kvcache import GRANULE, LayerCache
from potluck.model.caches import FullCache


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

    cache.advance(3, 20)  # by less than stays: row by row would overlap
    cache.advance(7, 20)

    assert all(
        torch.equal(*pair) for pair in zip(cache.read(7, 13, torch.float32), before, strict=True)
    )
    cache.write(20, kv[:7])
    assert torch.equal(cache.read(7, 13, torch.float32)[0], before[0])


def test_who_knows_where_a_cache_is_can_tell_when_its_rows_have_moved() -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 1000)
    cache.make_room(0, 50)
    place = cache.place

    cache.length = 120
    cache.make_room(120, 30)
    assert cache.place is place  # it fits
    cache.make_room(120, 31)
    assert cache.place is not place
    assert [layer.first for layer in cache.layers] == [0, 1]


def test_a_session_is_trimmed_to_where_all_of_its_layers_can_go_on() -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 1000)
    for position in range(0, 500, 50):
        cache.make_room(position, 50)
        cache.length = position + 50
    first = cache.layers[1].first

    cache.trim(first + 99)
    assert (cache.length, cache.layers[1].first) == (first + 99, first)
    cache.trim(first + 98)
    assert (cache.length, cache.layers[1].first) == (0, 0)


class Checkpointed(FullCache):
    """A kind that goes on at every tenth token only, as a recurrent state with checkpoints would."""

    def trim(self, first: int, position: int) -> int:
        return position - position % 10


def test_a_kind_with_checkpoints_is_trimmed_to_the_nearest_and_the_others_with_it() -> None:
    pool = make_pool(WINDOW, Checkpointed(row=ROW), FULL)
    cache = pool.open(A)
    pool.reserve(A, 1000)
    for position in range(0, 500, 50):
        cache.make_room(position, 50)
        cache.length = position + 50
    lowest = cache.layers[0].first + 99  # that the window can be trimmed to

    cache.trim(487)
    assert cache.length == 480
    assert lowest % 10
    cache.trim(lowest)  # the window could, but not at the checkpoint before it
    assert cache.length == 0


def test_memory_that_was_reserved_is_not_free_any_more() -> None:
    cache = LayerCache(64, 64, torch.float32, CPU)
    before = psutil.Process().memory_info().rss

    cache.resize(2048, 0)

    assert psutil.Process().memory_info().rss - before > 0.9 * cache.both.nbytes == 0.9 * (1 << 26)
