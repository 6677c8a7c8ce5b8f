"""Sessions with a common beginning have its rows in memory once, and each goes on by itself."""

import random

import pytest
import torch
from cache_pools import FULL, PER_TOKEN, WINDOW, A, B, C, make_pool

from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.caches.session_cache import SessionCache
from potluck.errors import OutOfMemoryError
from potluck.ids import SessionId
from potluck.model.caches import SHARED_TOKENS

GRANULE = SHARED_TOKENS


def begin(pool: CachePool, session: SessionId, tokens: int, capacity: int) -> SessionCache:
    """A session with so many tokens, whose numbers are their positions."""
    cache = pool.open(session)
    pool.reserve(session, capacity)
    go_on(cache, tokens)
    return cache


def go_on(cache: SessionCache, end: int, *, plus: float = 0) -> None:
    """Cache tokens up to a position; their numbers are greater than their positions by `plus`."""
    while (start := cache.length) < end:
        tokens = min(50, end - start)
        cache.begin_step(start, tokens)
        for layer in cache.layers:
            rows = layer.both[:, :, start - layer.first :][:, :, :tokens]
            rows.copy_(torch.arange(start, start + tokens).view(1, 1, -1, 1) + plus)


def numbers(cache: SessionCache, layer: int = 0) -> list[float]:
    """The numbers of a layer that has all tokens."""
    held = cache.layers[layer]
    parts = [] if held.shared is None else [held.shared]
    parts.append(held.both[:, :, : cache.length - held.first])
    return torch.cat(parts, 2)[1, 2, :, 3].tolist()


def in_memory(*caches: SessionCache) -> int:
    """Bytes of all that the caches have, each piece of memory counted once."""
    pieces = {
        memory.untyped_storage().data_ptr(): memory.untyped_storage().nbytes()
        for cache in caches
        for layer in cache.layers
        for memory in (layer.both, layer.shared)
        if memory is not None and memory.numel()
    }
    return sum(pieces.values())


def test_what_is_shared_is_in_memory_and_in_the_budget_once() -> None:
    pool = make_pool(shares=True)
    first = begin(pool, A, 700, 3 * GRANULE)
    second, third = pool.open(B), pool.open(C)

    pool.fork(B, A, 600)
    pool.fork(C, A, 700)

    assert pool.nbytes == 5 * GRANULE * PER_TOKEN == in_memory(first, second, third)
    assert [cache.length for cache in (first, second, third)] == [700, 600, 700]
    for cache in (first, second, third):
        go_on(cache, 750, plus=cache.length / 10)
    for cache, length in ((first, 700), (second, 600), (third, 700)):
        added = [at + length / 10 for at in range(length, 750)]
        assert numbers(cache) == pytest.approx([*range(length), *added])


@pytest.mark.parametrize("order", [(A, B, C), (C, A, B), (B, C, A)])
def test_shared_rows_stay_until_the_last_session_is_closed(order: tuple[SessionId, ...]) -> None:
    pool = make_pool(shares=True)
    caches = {A: begin(pool, A, 700, 3 * GRANULE), B: pool.open(B), C: pool.open(C)}
    pool.fork(B, A, 600)
    pool.fork(C, B, 600)

    for session in order:
        assert numbers(caches[session]) == list(range(caches[session].length))
        pool.close(session)
        del caches[session]
        assert pool.nbytes == in_memory(*caches.values())

    assert pool.nbytes == 0


def test_a_session_grows_behind_the_rows_that_it_shares() -> None:
    pool = make_pool(shares=True)
    first, second = begin(pool, A, 300, 2 * GRANULE), pool.open(B)
    pool.fork(B, A, 290)

    pool.reserve(B, 900)
    go_on(second, 900)

    assert numbers(second) == list(range(900))
    assert numbers(first) == list(range(300))
    assert pool.nbytes == in_memory(first, second)
    assert second.capacity == 4 * GRANULE


@pytest.mark.parametrize(
    ("position", "kept"), [(600, 600), (512, 512), (511, 256), (256, 256), (255, 0), (0, 0)]
)
def test_a_session_goes_back_among_shared_rows_in_whole_panels(position: int, kept: int) -> None:
    pool = make_pool(shares=True)
    first, second = begin(pool, A, 700, 3 * GRANULE), pool.open(B)
    pool.fork(B, A, 650)

    second.trim(position)

    assert second.length == kept
    pool.reserve(B, 700)
    go_on(second, 700, plus=0.5)
    assert numbers(second) == [*range(kept), *(at + 0.5 for at in range(kept, 700))]
    assert numbers(first) == list(range(700))
    pool.fork(B, A, 700)  # what it had before does not come back
    assert numbers(first) == list(range(700))


def test_what_was_shared_before_a_trim_is_not_shared_afterwards() -> None:
    pool = make_pool(shares=True)
    first = begin(pool, A, 700, 3 * GRANULE)
    pool.open(B)
    pool.fork(B, A, 700)
    first.trim(0)
    pool.reserve(A, 700)
    go_on(first, 700, plus=0.5)
    third = pool.open(C)

    pool.fork(C, A, 650)

    assert numbers(third) == [at + 0.5 for at in range(650)]


def test_layers_that_cannot_share_have_copies() -> None:
    pool = make_pool(FULL, WINDOW, shares=True)
    first, second = begin(pool, A, 300, 2 * GRANULE), pool.open(B)

    pool.fork(B, A, 300)
    go_on(second, 310, plus=0.5)

    window = first.layers[1]
    held = window.both[0, 0, : 300 - window.first, 0].tolist()
    assert held == list(range(window.first, 300))
    assert first.layers[1].shared is None
    assert pool.nbytes == in_memory(first, second)


def test_an_eviction_frees_no_more_than_what_no_other_session_shares() -> None:
    pool = make_pool(budget=6 * GRANULE * PER_TOKEN, shares=True)
    first, second = begin(pool, A, 700, 3 * GRANULE), pool.open(B)
    pool.fork(B, A, 512)

    assert pool.reserve(B, 6 * GRANULE) == [A]  # of which four panels are its own

    assert (first.capacity, second.length) == (0, 512)
    assert numbers(second) == list(range(512))
    assert pool.nbytes == 6 * GRANULE * PER_TOKEN == in_memory(first, second)
    with pytest.raises(OutOfMemoryError):
        pool.reserve(B, 6 * GRANULE + 1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_sessions_do_the_budget_is_kept_and_no_token_is_another(seed: int) -> None:
    chance = random.Random(seed)
    budget = 10 * GRANULE * PER_TOKEN
    pool = make_pool(budget=budget, shares=True)
    caches, told = dict[SessionId, SessionCache](), dict[SessionId, list[float]]()
    for number in range(150):
        session, other = chance.sample([A, B, C, SessionId("d")], 2)
        if session not in caches or chance.random() < 0.1:
            caches[session], told[session] = pool.open(session), []
            if other in caches:
                pool.fork(session, other, chance.randrange(1, 1200))
                told[session] = list(told[other])
        elif chance.random() < 0.3:
            caches[session].trim(chance.randrange(caches[session].length + 1))
        else:
            end = min(1200, caches[session].length + chance.choice([1, 40, 300]))
            pool.reserve(session, end)
            before = caches[session].length
            go_on(caches[session], end, plus=number * 2000)
            told[session][before:] = [at + number * 2000 for at in range(before, end)]
        # Rows that all sessions have trimmed away count until the sessions are closed.
        assert in_memory(*caches.values()) <= pool.nbytes <= budget
        for name, cache in caches.items():
            assert numbers(cache) == told[name][: cache.length]
    for session in caches:
        pool.close(session)
    assert pool.nbytes == 0
