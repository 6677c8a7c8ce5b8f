"""Requests wait in the order in which they came, and know for about how long."""

import asyncio
from collections.abc import Callable

import pytest
from fake_cluster import run, until
from fake_time import run_at_once

from potluck.api.events import Waiting
from potluck.cluster.driver.turns import Turn, Turns

LONG_S = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Request:
    """A request that has its turn until `end` is set, and the places that it had before."""

    def __init__(self, turns: Turns) -> None:
        self.places: list[Waiting] = []
        self.turn: Turn | None = None
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._take(turns))

    async def _take(self, turns: Turns) -> None:
        with turns.turn() as turn:
            while (waiting := await turn.come()) is not None:
                self.places.append(waiting)
            self.turn = turn
            await self.end.wait()

    @property
    def has_begun(self) -> bool:
        return self.turn is not None

    async def finish(self) -> None:
        self.end.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def gives_way(turn: Turn) -> bool:
    """Wait until the turn has come again; return whether there was anybody to wait for."""
    has_given_way = turn.give_way()
    while await turn.come() is not None:
        pass
    return has_given_way


def turns_of(most: int, clock: Callable[[], float] | None = None, idle_s: float = LONG_S) -> Turns:
    return Turns(most, clock or Clock(), idle_s=idle_s)


def test_requests_get_their_turns_in_the_order_in_which_they_came() -> None:
    async def main() -> None:
        turns = turns_of(1)
        first, second, third = (Request(turns) for _ in range(3))
        await until(lambda: third.places)
        assert [first.has_begun, second.has_begun, turns.waiting] == [True, False, 2]

        await first.finish()
        await until(lambda: second.has_begun)
        await until(lambda: len(third.places) == 2)
        await second.finish()
        await third.finish()

        assert [each.place for each in second.places] == [1]
        assert [each.place for each in third.places] == [2, 1]
        assert not turns.waiting

    run(main())


def test_how_long_a_request_waits_follows_from_the_answers_before_and_its_place() -> None:
    async def main() -> None:
        clock = Clock()
        turns = turns_of(2, clock)
        first, second, third = (Request(turns) for _ in range(3))
        await until(lambda: third.places)
        clock.now += 10.0
        await first.finish()
        fourth, fifth = Request(turns), Request(turns)
        await until(lambda: fifth.places)

        assert [each.seconds for each in third.places] == [None]
        assert [each.seconds for each in fifth.places] == [pytest.approx(10.0)]
        for request in (second, third, fourth, fifth):
            await request.finish()

    run(main())


@pytest.mark.parametrize("is_offered", [False, True], ids=["while it waits", "as it gets the turn"])
def test_a_request_that_is_cancelled_leaves_its_place_to_the_next(is_offered: bool) -> None:
    async def main() -> None:
        turns = turns_of(1)
        first, second, third = (Request(turns) for _ in range(3))
        await until(lambda: third.places)
        if is_offered:
            await first.finish()
        await second.cancel()
        await first.finish()

        await until(lambda: third.has_begun)
        assert not turns.waiting
        await third.finish()

    run(main())


def test_who_has_lost_its_caches_to_others_goes_on_when_one_of_them_ends_and_before_newcomers() -> (
    None
):
    async def main() -> None:
        turns = turns_of(3)
        first, second, third = (Request(turns) for _ in range(3))
        await until(lambda: third.has_begun)
        ways = [asyncio.create_task(gives_way(each.turn)) for each in (third, second) if each.turn]
        newcomer = Request(turns)
        await until(lambda: newcomer.places)
        assert newcomer.places[0].place == 3

        await first.finish()

        assert await ways[1]  # the second came before the third
        assert not ways[0].done()
        assert not newcomer.has_begun
        await second.finish()
        assert await ways[0]
        await third.finish()
        await newcomer.finish()

    run(main())


def test_who_is_alone_waits_for_nobody() -> None:
    async def main() -> None:
        turns = turns_of(2)
        only = Request(turns)
        await until(lambda: only.has_begun)
        assert only.turn is not None
        assert not await gives_way(only.turn)
        await only.finish()

    run(main())


def test_after_a_shortage_one_request_more_is_tried_from_time_to_time() -> None:
    async def main() -> None:
        turns = turns_of(4)
        first, second = Request(turns), Request(turns)
        await until(lambda: second.has_begun)
        assert second.turn is not None
        way = asyncio.create_task(gives_way(second.turn))
        await until(lambda: turns.waiting)
        await first.finish()
        assert await way
        await second.finish()

        requests = [Request(turns) for _ in range(12)]
        at_a_time: list[int] = []
        for _ in range(6):
            await until(lambda: any(each.has_begun for each in requests))
            at_a_time.append(12 - len(at_a_time) - turns.waiting)
            ends = next(each for each in requests if each.has_begun)
            requests.remove(ends)
            await ends.finish()
        for each in requests:
            await each.cancel()

        assert at_a_time == [1, 1, 2, 2, 2, 2]

    run(main())


def test_nobody_waits_for_answers_whose_readers_stopped_reading() -> None:
    async def main() -> None:
        turns = turns_of(2, idle_s=0.0)
        first, second = Request(turns), Request(turns)
        await until(lambda: second.has_begun)
        assert second.turn is not None
        assert await gives_way(second.turn)
        await first.finish()
        await second.finish()

    run(main())


def test_nobody_begins_too_early_while_the_others_get_tokens() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        turns = turns_of(2, loop.time, idle_s=10.0)
        first, second = Request(turns), Request(turns)
        await asyncio.sleep(1)
        assert first.turn is not None
        assert second.turn is not None
        way = asyncio.create_task(gives_way(second.turn))
        await asyncio.sleep(6)
        first.turn.goes_on()
        await asyncio.sleep(9)
        assert not way.done()
        assert await way  # ten seconds after that token at the earliest
        assert 17 <= loop.time() <= 27
        await first.finish()
        await second.finish()

    run_at_once(main())
