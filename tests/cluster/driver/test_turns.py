"""Requests wait in the order in which they came, and know for about how long."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from fake_cluster import run, until

from potluck.cluster.driver.turns import Turns


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def take(turns: Turns, name: str, log: list[str], end: asyncio.Event) -> None:
    async with turns.turn():
        log.append(name)
        await end.wait()


def test_requests_get_their_turns_in_the_order_in_which_they_came() -> None:
    async def main() -> None:
        turns, log = Turns(1, Clock()), list[str]()
        ends = [asyncio.Event() for _ in "abc"]
        tasks = [
            asyncio.create_task(take(turns, name, log, end))
            for name, end in zip("abc", ends, strict=True)
        ]
        for count, end in enumerate(ends, 1):
            await until(lambda count=count: len(log) == count)
            assert turns.waiting == 3 - count
            end.set()
        await asyncio.gather(*tasks)
        assert log == ["a", "b", "c"]

    run(main())


def test_how_long_a_request_waits_follows_from_the_answers_before_and_its_place() -> None:
    async def main() -> None:
        clock = Clock()
        turns = Turns(2, clock)
        assert turns.wait_s(1) is None
        async with turns.turn():
            clock.now += 10.0
        assert turns.wait_s(1) == pytest.approx(5.0)
        assert turns.wait_s(4) == pytest.approx(20.0)

    run(main())


@pytest.mark.parametrize("is_offered", [False, True], ids=["while it waits", "as it gets the turn"])
def test_a_request_that_is_cancelled_leaves_its_place_to_the_next(is_offered: bool) -> None:
    async def main() -> None:
        turns, log, end = Turns(1, Clock()), list[str](), asyncio.Event()
        async with AsyncExitStack() as first:
            await first.enter_async_context(turns.turn())
            second = asyncio.create_task(take(turns, "second", log, end))
            third = asyncio.create_task(take(turns, "third", log, end))
            await until(lambda: turns.waiting == 2)
            if not is_offered:
                second.cancel()
                await asyncio.wait([second])
                assert turns.waiting == 1
        second.cancel()
        await until(lambda: log)
        assert log == ["third"]
        end.set()
        await third
        async with turns.turn():
            assert not turns.waiting

    run(main())
