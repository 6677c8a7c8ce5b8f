"""Caches grow without losing tokens, stay within their budget, and go least recently used first."""

import sys
import threading
from collections.abc import Callable

import pytest
import torch
from cache_pools import CPU, FULL, PER_TOKEN, ROW, WINDOW, A, B, C, make_pool
from torch import Tensor

from potluck.engine.caches import kvcache
from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.caches.kvcache import GRANULE
from potluck.engine.caches.session_cache import SessionCache
from potluck.errors import OutOfMemoryError
from potluck.ids import SessionId


def held_by(cache: SessionCache) -> int:
    """Bytes of memory, whether or not all of them are looked at; each in one piece."""
    return sum(layer.both.untyped_storage().nbytes() for layer in cache.layers)


def test_a_session_doubles_up_to_the_context() -> None:
    pool = make_pool(context=1000)
    cache = pool.open(A)
    grown_at = dict[int, int]()

    for tokens in range(1, 1001):
        pool.reserve(A, tokens)
        cache.length = tokens
        grown_at.setdefault(cache.capacity, tokens)

    assert grown_at == {GRANULE: 1, 2 * GRANULE: GRANULE + 1, 1000: 2 * GRANULE + 1}
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
    assert [held_by(caches[name]) for name in (A, B, C)] == [
        tokens * PER_TOKEN for tokens in (GRANULE, 0, 2 * GRANULE)
    ]
    assert pool.nbytes <= 3 * GRANULE * PER_TOKEN


def test_a_session_has_no_memory_before_its_first_token() -> None:
    assert held_by(make_pool().open(A)) == 0


def test_who_knows_where_a_cache_is_can_tell_when_it_is_elsewhere() -> None:
    pool = make_pool(budget=2 * GRANULE * PER_TOKEN)
    mine, theirs = pool.open(A), pool.open(B)
    places = [mine.place, theirs.place]

    pool.reserve(A, 1)
    places.append(mine.place)  # made
    pool.reserve(A, 2)
    assert mine.place is places[-1]  # as it was: there was room
    pool.reserve(A, GRANULE + 1)
    places.append(mine.place)  # grown
    pool.reserve(B, 1)
    places += [mine.place, theirs.place]  # evicted, and made

    assert len({id(place) for place in places}) == len(places)


def test_a_session_that_has_no_cache_is_not_one_that_had_to_go() -> None:
    pool = make_pool(budget=GRANULE * PER_TOKEN)
    pool.open(A)
    pool.open(B)
    pool.reserve(B, 1)
    pool.open(C)

    assert pool.reserve(C, 1) == [B]


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


def test_the_last_tokens_of_a_budget_are_held_though_they_are_no_whole_block() -> None:
    pool = make_pool(budget=1000 * PER_TOKEN)
    cache = pool.open(A)

    pool.reserve(A, 900)

    assert cache.capacity == pool.tokens == 1000
    with pytest.raises(OutOfMemoryError):
        pool.reserve(A, 1001)


def test_nobody_goes_for_more_than_is_needed_now() -> None:
    pool = make_pool(budget=4 * GRANULE * PER_TOKEN)
    pool.open(A)
    cache = pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 2 * GRANULE)

    assert pool.reserve(B, 2 * GRANULE + 1) == []
    assert cache.capacity == 3 * GRANULE


@pytest.mark.parametrize(("context", "tokens_in_budget"), [(300, 1000), (1000, 300)])
def test_all_that_there_is_room_for_may_be_asked_for_at_once(
    context: int, tokens_in_budget: int
) -> None:
    pool = make_pool(context=context, budget=tokens_in_budget * PER_TOKEN)
    cache = pool.open(A)

    pool.reserve(A, 300)

    assert cache.capacity == 300


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


def test_what_grew_before_another_layer_could_not_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool()
    cache = pool.open(A)
    pool.reserve(A, GRANULE)

    _, second = cache.layers
    with monkeypatch.context() as patch:
        patch.setattr(kvcache, "empty_rows", _without_memory_for(second.both))
        with pytest.raises(MemoryError):
            pool.reserve(A, 2 * GRANULE)

    assert (cache.capacity, cache.length) == (GRANULE, 0)
    assert (
        pool.nbytes
        == sum(layer.both.nbytes for layer in cache.layers)
        == 3 * GRANULE * PER_TOKEN // 2
    )
    pool.reserve(A, 2 * GRANULE)
    assert pool.nbytes == 2 * GRANULE * PER_TOKEN
    pool.close(A)
    assert pool.nbytes == 0


def test_what_a_failed_growth_left_goes_before_a_conversation_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool(budget=3 * GRANULE * PER_TOKEN)
    growing, failed = pool.open(A), pool.open(B)
    pool.reserve(A, GRANULE)
    growing.length = GRANULE
    _, second = failed.layers
    with monkeypatch.context() as patch:
        patch.setattr(kvcache, "empty_rows", _without_memory_for(second.both))
        with pytest.raises(MemoryError):
            pool.reserve(B, GRANULE)
    assert failed.capacity == 0 < failed.nbytes

    assert pool.reserve(A, 3 * GRANULE) == [B]

    assert growing.length == GRANULE
    assert failed.nbytes == 0
    assert pool.nbytes == growing.nbytes == 3 * GRANULE * PER_TOKEN


def _without_memory_for(cache: Tensor) -> Callable[[Tensor, tuple[int, ...]], Tensor]:
    """What gives every layer memory but this one."""
    give = kvcache.empty_rows

    def empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if like is cache:
            raise MemoryError
        return give(like, shape)

    return empty


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


def test_a_stage_without_layers_caches_nothing() -> None:
    pool = CachePool(
        (), dtype=torch.float32, device=CPU, context=64, budget=0, budget_now=lambda _: -1
    )
    cache = pool.open(A)

    assert pool.reserve(A, 64) == []
    assert (cache.capacity, pool.nbytes) == (64, 0)


def test_a_window_is_charged_its_rows_and_the_layers_beside_it_all_tokens() -> None:
    pool = make_pool(FULL, WINDOW, WINDOW, budget=(1000 + 2 * 150) * ROW.nbytes)
    cache = pool.open(A)

    pool.reserve(A, 1000)

    assert pool.tokens == 1000
    assert [layer.rows for layer in cache.layers] == [1000, 150, 150]
    assert pool.nbytes == cache.nbytes == (1000 + 2 * 150) * ROW.nbytes
    with pytest.raises(OutOfMemoryError) as caught:
        pool.reserve(A, 1001)
    assert caught.value.data["needed"] == (1001 + 2 * 150) * ROW.nbytes


def test_windows_alone_hold_any_session_in_the_same_bytes() -> None:
    pool = make_pool(WINDOW, WINDOW, budget=2 * 150 * ROW.nbytes)

    assert pool.tokens == 4096  # the context
    assert make_pool(WINDOW, WINDOW, budget=2 * 150 * ROW.nbytes - 1).tokens == 149


def test_another_thread_may_ask_for_the_size_at_any_time() -> None:
    pool = make_pool(context=GRANULE)
    for number in range(100):
        pool.open(SessionId(str(number)))
    pool.open(A)
    pool.reserve(A, 1)
    is_over = threading.Event()

    def open_and_close() -> None:
        while not is_over.is_set():
            pool.open(B)
            pool.close(B)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=open_and_close)
    other.start()
    try:
        sizes = {pool.nbytes for _ in range(10_000)}
    finally:
        is_over.set()
        other.join()
        sys.setswitchinterval(interval)

    assert sizes == {GRANULE * PER_TOKEN}


def fill(cache: SessionCache, tokens: int) -> None:
    """Cache so many tokens, whose numbers are their positions."""
    cache.begin_step(0, tokens)
    for layer in cache.layers:
        rows = torch.arange(layer.first, tokens).view(1, 1, -1, 1)
        layer.both[:, :, : tokens - layer.first].copy_(rows)


def positions(cache: SessionCache, layer: int) -> list[float]:
    """The numbers of the tokens that a layer holds, from the first row on."""
    held = cache.layers[layer]
    return held.both[0, 0, : cache.length - held.first, 0].tolist()


def test_a_copy_begins_like_the_other_session_and_goes_on_by_itself() -> None:
    pool = make_pool(FULL, WINDOW)
    first, second = pool.open(A), pool.open(B)
    pool.reserve(A, 300)
    fill(first, 300)

    assert pool.fork(B, A, 290) == []
    fill(first, 300)
    first.layers[0].both.zero_()

    assert (first.length, second.length) == (300, 290)
    assert positions(second, 0) == list(range(290))
    assert positions(second, 1) == list(range(second.layers[1].first, 290))


@pytest.mark.parametrize(("wanted", "got"), [(500, 300), (290, 290), (120, 0)])
def test_a_copy_has_what_all_layers_can_go_on_from(wanted: int, got: int) -> None:
    pool = make_pool(FULL, WINDOW)
    cache = pool.open(A)
    pool.reserve(A, 300)
    fill(cache, 300)
    for layer in cache.layers[1:]:
        layer.held = (180,)

    copy = pool.open(B)
    pool.fork(B, A, wanted)

    assert copy.length == got


def test_without_room_for_both_a_copy_takes_the_memory_of_the_other() -> None:
    pool = make_pool(budget=2 * GRANULE * PER_TOKEN)
    first, idle, copy = pool.open(A), pool.open(B), pool.open(C)
    pool.reserve(A, GRANULE)
    fill(first, 200)
    pool.reserve(B, GRANULE)

    assert pool.fork(C, A, 150) == [B]  # the one that is neither
    assert (first.length, idle.capacity, copy.length) == (200, 0, 150)
    pool.close(B)
    pool.close(C)
    pool.reserve(A, GRANULE + 1)
    copy = pool.open(C)

    assert pool.fork(C, A, 150) == [A]
    assert (first.length, copy.length) == (0, 150)
    assert positions(copy, 0) == list(range(150))
    assert pool.nbytes == 2 * GRANULE * PER_TOKEN == held_by(copy)


def test_room_for_a_while_takes_the_caches_of_others_and_never_the_own_one() -> None:
    pool = make_pool(budget=3 * GRANULE * PER_TOKEN)
    caches = {name: pool.open(name) for name in (A, B, C)}
    for name in (A, B, C):
        pool.reserve(name, 5)

    assert pool.make_room(A, 0) == []
    assert pool.make_room(A, GRANULE * PER_TOKEN) == [B]
    with pytest.raises(OutOfMemoryError):
        pool.make_room(A, 2 * GRANULE * PER_TOKEN + 1)
    assert [caches[name].capacity for name in (A, B, C)] == [GRANULE, 0, GRANULE]
