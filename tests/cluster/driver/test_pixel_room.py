import asyncio

import pytest
from fake_cluster import run, until

from potluck.cluster.driver.pixel_room import MOST_PREPARED, PixelLimits, PixelRoom
from potluck.errors import TooManyRequestsError


class Prompts:
    """Prompts with pictures, each of which holds its room until it is let go."""

    def __init__(self, limits: PixelLimits) -> None:
        self.room = PixelRoom(limits)
        self.holding: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def begin(self, name: str, nbytes: int = MOST_PREPARED) -> "asyncio.Task[None]":
        return asyncio.create_task(self._hold(name, nbytes))

    async def _hold(self, name: str, nbytes: int) -> None:
        end = self._ends[name] = asyncio.Event()
        async with self.room.held() as keep:
            keep(nbytes)
            self.holding.append(name)
            await end.wait()
            self.holding.remove(name)

    def end(self, name: str) -> None:
        self._ends[name].set()


def test_what_pixels_do_not_take_is_given_to_the_next() -> None:
    async def main() -> None:
        prompts = Prompts(PixelLimits(total=MOST_PREPARED + 30))
        tasks = [prompts.begin(name, nbytes=10) for name in "abcd"]
        await until(lambda: len(prompts.holding) == 4)  # the last one may yet be of any size
        assert prompts.room.taken == 40
        late = prompts.begin("e", nbytes=5)
        for _ in range(5):
            await asyncio.sleep(0)
        assert prompts.holding == ["a", "b", "c", "d"]
        prompts.end("b")
        await until(lambda: "e" in prompts.holding)
        assert prompts.room.taken == 35
        for name in "acde":
            prompts.end(name)
        await asyncio.gather(*tasks, late)
        assert prompts.room.taken == 0

    run(main())


def test_prompts_wait_in_their_order_and_one_that_is_given_up_loses_its_place() -> None:
    async def main() -> None:
        prompts = Prompts(PixelLimits(total=MOST_PREPARED))
        tasks = {name: prompts.begin(name) for name in "abcd"}
        await until(lambda: prompts.holding == ["a"])
        tasks["b"].cancel()
        await asyncio.wait([tasks["b"]])
        prompts.end("a")
        await until(lambda: prompts.holding == ["c"])
        tasks["c"].cancel()
        await until(lambda: "d" in prompts.holding)
        prompts.end("d")
        await tasks["d"]
        assert prompts.room.taken == 0

    run(main())


def test_one_that_is_cancelled_as_its_turn_comes_leaves_its_room_to_the_next() -> None:
    async def main() -> None:
        prompts = Prompts(PixelLimits(total=MOST_PREPARED))
        tasks = {name: prompts.begin(name) for name in "abc"}
        await until(lambda: prompts.holding == ["a"])
        tasks["a"].cancel()  # gives its room to b, whose task has not run yet when it is cancelled
        await until(lambda: tasks["a"].done())
        tasks["b"].cancel()
        await until(lambda: prompts.holding[-1:] == ["c"])
        prompts.end("c")
        await tasks["c"]
        assert prompts.room.taken == 0

    run(main())


def test_more_than_may_wait_are_refused_with_a_sentence() -> None:
    async def main() -> None:
        prompts = Prompts(PixelLimits(total=MOST_PREPARED, waiting=1))
        first, second = prompts.begin("a"), prompts.begin("b")
        await until(lambda: prompts.holding == ["a"])
        with pytest.raises(TooManyRequestsError, match="and 1 other prompts wait for it") as no:
            await prompts.begin("c")
        assert "take all of the 201.3 MB that pictures may have. Send it again" in no.value.message
        prompts.end("a")
        await until(lambda: prompts.holding == ["b"])
        prompts.end("b")
        await asyncio.gather(first, second)

    run(main())


def test_who_waits_too_long_is_told_and_those_behind_it_go_on() -> None:
    async def main() -> None:
        prompts = Prompts(PixelLimits(total=MOST_PREPARED, wait_s=0.0))
        first = prompts.begin("a")
        await until(lambda: prompts.holding == ["a"])
        with pytest.raises(
            TooManyRequestsError, match="no room for the pictures of this prompt within 0 s"
        ):
            await prompts.begin("b")
        prompts.end("a")
        await first
        third = prompts.begin("c")
        await until(lambda: prompts.holding == ["c"])
        prompts.end("c")
        await third

    run(main())
