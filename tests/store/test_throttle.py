"""The limit of bandwidth, on a clock that waits for nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_time import run_at_once

from potluck.store.throttle import LEAST_CHUNK, MBIT, Throttle


async def seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    loop = asyncio.get_running_loop()
    before = loop.time()
    await work()
    return loop.time() - before


async def pass_through(throttle: Throttle, nbytes: int, piece: int = 50_000) -> None:
    for _ in range(nbytes // piece):
        await throttle.take(piece)


def test_bytes_pass_at_the_rate_of_the_limit() -> None:
    async def main() -> None:
        throttle = Throttle(8)  # 1 MB/s
        taken = await seconds_of(lambda: pass_through(throttle, 10_000_000))
        assert taken == pytest.approx(10, rel=0.05)

    run_at_once(main())


def test_all_transfers_share_the_limit() -> None:
    async def main() -> None:
        throttle = Throttle(8)

        async def two() -> None:
            await asyncio.gather(*(pass_through(throttle, 2_000_000) for _ in range(2)))

        assert await seconds_of(two) == pytest.approx(4, rel=0.1)

    run_at_once(main())


def test_a_pause_is_not_saved_up() -> None:
    async def main() -> None:
        throttle = Throttle(8)
        await asyncio.sleep(100)
        taken = await seconds_of(lambda: pass_through(throttle, 4_000_000))
        assert taken == pytest.approx(4, rel=0.1)

    run_at_once(main())


def test_without_a_limit_nothing_waits() -> None:
    async def main() -> None:
        throttle = Throttle()
        assert await seconds_of(lambda: pass_through(throttle, 10**9, 10**6)) == 0
        assert throttle.chunk(2 << 20) == 2 << 20
        assert throttle.rate(None) is None
        assert throttle.rate(5.0) == 5.0

    run_at_once(main())


def test_a_limit_that_is_lifted_or_raised_holds_for_transfers_under_way() -> None:
    async def main() -> None:
        throttle = Throttle(1)
        slow = asyncio.create_task(pass_through(throttle, 10**8))
        await asyncio.sleep(2)
        assert not slow.done()
        throttle.limit(None)
        assert await seconds_of(lambda: slow) <= 0.6

    run_at_once(main())


def test_chunks_are_small_on_a_slow_rate_and_rates_are_those_of_the_slower() -> None:
    throttle = Throttle(10)
    assert throttle.chunk(2 << 20) == 10 * MBIT // 4
    assert throttle.rate(None) == 10 * MBIT
    assert throttle.rate(5.0) == 5.0
    throttle.limit(0)
    assert throttle.chunk(2 << 20) == LEAST_CHUNK
    assert throttle.chunk(1000) == 1000
