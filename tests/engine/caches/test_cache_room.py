"""Caches grow into what is free now, which may be less than when the model was loaded."""

import sys

import psutil
import pytest
from cache_pools import PER_TOKEN, A, B, make_pool

from potluck.engine.caches.kvcache import GRANULE
from potluck.errors import OutOfMemoryError


def test_a_cache_grows_only_into_what_is_free_now() -> None:
    free = 5 * GRANULE * PER_TOKEN
    pool = make_pool(budget_now=lambda _: free)
    cache = pool.open(A)
    pool.reserve(A, 3 * GRANULE)

    pool.reserve(A, 3 * GRANULE + 1)

    assert cache.capacity == 5 * GRANULE  # and not twice as much


def test_who_waits_gives_way_to_who_runs_when_memory_became_short() -> None:
    free = 1 << 30
    pool = make_pool(budget_now=lambda _: free)
    waiting, cache = pool.open(A), pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 1)
    free = 2 * GRANULE * PER_TOKEN

    assert pool.reserve(B, GRANULE + 1) == [A]
    assert (waiting.capacity, cache.capacity) == (0, 2 * GRANULE)


def test_a_byte_too_few_is_too_few() -> None:
    free = 1 << 30
    pool = make_pool(budget_now=lambda _: free)
    pool.open(A)
    pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 1)
    free = 3 * GRANULE * PER_TOKEN - 1

    assert pool.reserve(B, GRANULE + 1) == [A]


def test_caches_stay_within_their_budget_however_much_is_free() -> None:
    pool = make_pool(budget=3 * GRANULE * PER_TOKEN, budget_now=lambda _: 1 << 40)
    pool.open(A)
    pool.open(B)
    pool.reserve(A, 2 * GRANULE)

    assert pool.reserve(B, GRANULE + 1) == [A]


def test_what_is_not_free_any_more_is_refused_with_the_numbers_and_changes_nothing() -> None:
    free = 1 << 30
    pool = make_pool(budget_now=lambda _: free)
    other, cache = pool.open(A), pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 100)
    cache.length = 100
    free = 2 * GRANULE * PER_TOKEN

    with pytest.raises(OutOfMemoryError, match="free for it now") as caught:
        pool.reserve(B, 700)

    assert caught.value.data == {
        "needed": (700 - GRANULE) * PER_TOKEN,
        "available": GRANULE * PER_TOKEN,  # if the other conversation went
    }
    assert (other.capacity, cache.capacity, cache.length) == (GRANULE, GRANULE, 100)
    free = 1 << 30
    assert pool.reserve(B, 700) == []


@pytest.mark.parametrize("tokens", [290, 300])
def test_less_than_a_block_is_used_where_no_more_is_free(tokens: int) -> None:
    pool = make_pool(budget_now=lambda _: 300 * PER_TOKEN)
    cache = pool.open(A)

    pool.reserve(A, tokens)

    assert cache.capacity == 300


def test_what_is_kept_for_later_is_given_back_before_anybody_goes() -> None:
    answers = [1 << 30, 1 << 30, GRANULE * PER_TOKEN, 1 << 30]  # the last one after giving back
    pool = make_pool(budget_now=lambda _: answers.pop(0))
    pool.open(A)
    pool.open(B)
    pool.reserve(A, 1)
    pool.reserve(B, 1)

    assert pool.reserve(B, GRANULE + 1) == []
    assert not answers


@pytest.mark.parametrize(
    ("free", "budget", "asked"),
    [
        (2 * GRANULE, 4 * GRANULE, 1),
        (2 * GRANULE - 1, 4 * GRANULE, 2),
        (2 * GRANULE - 10, 2 * GRANULE - 20, 1),  # more than the budget would let it use
    ],
    ids=["enough", "not enough", "enough for the budget"],
)
def test_what_is_kept_for_later_is_given_back_only_where_a_block_would_not_fit(
    free: int, budget: int, asked: int
) -> None:
    """To give back takes time, and so does making again what was given back."""
    tokens = [4 * GRANULE, free, 2 * GRANULE]  # the last one after giving back
    pool = make_pool(
        budget=budget * PER_TOKEN, budget_now=lambda _: tokens.pop(0) * PER_TOKEN
    )  # fmt: skip
    cache = pool.open(A)
    pool.reserve(A, 1)

    pool.reserve(A, GRANULE + 1)

    assert len(tokens) == 2 - asked
    assert cache.capacity == min(budget, 2 * GRANULE)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise elsewhere")
def test_what_the_process_freed_and_kept_is_room_for_a_prompt() -> None:
    pieces = [bytearray(100_000) for _ in range(1000)]  # each too small for a mapping of its own
    kept = pieces[::10]
    most = resident()
    del pieces
    pool = make_pool(budget_now=lambda cached: cached + most - resident() - 20_000_000)
    pool.open(A)

    assert pool.reserve(A, GRANULE) == []
    assert len(kept) == 100


def test_what_is_free_is_asked_with_what_the_caches_have() -> None:
    asked: list[int] = []

    def budget_now(cached: int) -> int:
        asked.append(cached)
        return 1 << 30

    pool = make_pool(budget_now=budget_now)
    pool.open(A)
    for tokens in (1, GRANULE, GRANULE + 1):
        pool.reserve(A, tokens)

    assert asked == [0, GRANULE * PER_TOKEN]  # and not for tokens that there is room for


def resident() -> int:
    """Bytes of this process that are in memory."""
    return psutil.Process().memory_info().rss
