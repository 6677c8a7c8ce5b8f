"""Caches grow without losing tokens, stay within their budget, and go least recently used first."""

import pytest
import torch

from potluck.engine.kvcache import GRANULE, CachePool, LayerCache
from potluck.errors import OutOfMemoryError
from potluck.ids import SessionId

CPU = torch.device("cpu")
PER_TOKEN = 2 * 2 * 3 * 4 * 4  # keys and values, layers, heads, values of a head, bytes of each

A, B, C = (SessionId(name) for name in "abc")


def make_pool(*, context: int = 4096, budget: int = 1 << 30) -> CachePool:
    return CachePool(
        layers=2,
        kv_heads=3,
        head_dim=4,
        dtype=torch.float32,
        device=CPU,
        context=context,
        budget=budget,
    )


def test_what_was_written_is_read_back_keys_before_values() -> None:
    cache = LayerCache(3, 4, torch.float32, CPU)
    cache.resize(10, 0)
    kv = torch.randn(5, 6, 4)

    cache.write(2, kv)

    keys, values = cache.read(2, 5, torch.float32)
    assert torch.equal(keys[0], kv[:, :3].transpose(0, 1))
    assert torch.equal(values[0], kv[:, 3:].transpose(0, 1))


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


def test_a_session_doubles_up_to_the_context() -> None:
    pool = make_pool(context=1000)
    cache = pool.open(A)
    capacities = set[int]()

    for tokens in range(1, 1001):
        pool.reserve(A, tokens)
        cache.length = tokens
        capacities.add(cache.capacity)

    assert sorted(capacities) == [GRANULE, 2 * GRANULE, 1000]
    assert pool.nbytes == 1000 * PER_TOKEN


def test_a_short_context_takes_no_more_than_itself() -> None:
    pool = make_pool(context=10)
    pool.open(A)

    pool.reserve(A, 3)

    assert pool.nbytes == 10 * PER_TOKEN


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    pool = make_pool(budget=3 * GRANULE * PER_TOKEN)
    caches = {name: pool.open(name) for name in (A, B, C)}
    for name in (A, B, C, A):
        assert pool.reserve(name, 5) == []

    evicted = pool.reserve(C, GRANULE + 1)

    assert evicted == [B]
    assert [caches[name].capacity for name in (A, B, C)] == [GRANULE, 0, 2 * GRANULE]
    assert pool.nbytes <= 3 * GRANULE * PER_TOKEN


def test_an_evicted_session_may_come_back() -> None:
    pool = make_pool(budget=GRANULE * PER_TOKEN)
    first = pool.open(A)
    pool.open(B)
    pool.reserve(A, 5)
    first.length = 5

    assert pool.reserve(B, 5) == [A]
    assert first.length == 0
    assert pool.reserve(A, 5) == [B]
    assert first.capacity == GRANULE


def test_doubling_stops_at_the_budget() -> None:
    budget = (3 * GRANULE + 10) * PER_TOKEN
    pool = make_pool(budget=budget)
    cache = pool.open(A)
    pool.reserve(A, 2 * GRANULE)

    pool.reserve(A, 2 * GRANULE + 1)

    assert cache.capacity == 3 * GRANULE + 10
    assert pool.nbytes <= budget


def test_more_than_the_budget_is_refused_and_changes_nothing() -> None:
    pool = make_pool(budget=2 * GRANULE * PER_TOKEN)
    pool.open(A)
    pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 1)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.reserve(B, 3 * GRANULE)

    assert caught.value.data["needed"] == 3 * GRANULE * PER_TOKEN
    assert caught.value.data["available"] == 2 * GRANULE * PER_TOKEN
    assert pool.nbytes == 2 * GRANULE * PER_TOKEN


def test_a_closed_or_reopened_session_gives_its_bytes_back() -> None:
    pool = make_pool()
    pool.open(A)
    pool.reserve(A, 1)

    pool.open(A)
    assert pool.nbytes == 0
    pool.reserve(A, 1)
    pool.close(A)
    assert pool.nbytes == 0
    pool.close(A)


def test_the_pool_says_how_long_one_session_can_become() -> None:
    assert make_pool(budget=300 * PER_TOKEN).tokens == 300
    assert make_pool(budget=1 << 40).tokens == make_pool(budget=1 << 41).tokens  # the context
