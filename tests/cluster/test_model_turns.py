"""Requests for several models, of which one is loaded at a time."""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack, aclosing
from typing import Any

from potluck.cluster.model_turns import ModelTurn, ModelTurns


def turns() -> ModelTurns:
    return ModelTurns(lambda: "loaded")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def place(turn: ModelTurn) -> int:
    """Its place in the queue; 0: it has the turn."""
    async with aclosing(turn.come()) as places:
        waiting = await anext(places, None)
        return waiting.place if waiting is not None else 0


def test_requests_for_one_model_have_their_turn_together() -> None:
    async def main() -> None:
        all_ = turns()
        with all_.of("loaded") as first, all_.of(None) as second, all_.of("loaded") as third:
            assert [await place(turn) for turn in (first, second, third)] == [0, 0, 0]
            assert all_.is_used
        assert not all_.is_used
        assert all_.count == 3

    run(main())


def test_a_request_for_another_model_waits_until_all_answers_of_this_one_have_ended() -> None:
    async def main() -> None:
        all_ = turns()
        with ExitStack() as one, ExitStack() as two:
            one.enter_context(all_.of("loaded"))
            two.enter_context(all_.of("loaded"))
            with all_.of("other") as other:
                one.close()
                assert await place(other) == 1
                two.close()
                assert await place(other) == 0

    run(main())


def test_who_comes_while_another_model_is_waited_for_waits_behind_it() -> None:
    async def main() -> None:
        all_ = turns()
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(all_.of("a"))
            b = second.enter_context(all_.of("b"))
            with all_.of("a") as late, all_.of("a") as later:
                assert [await place(turn) for turn in (b, late, later)] == [1, 2, 3]
                first.close()
                assert [await place(turn) for turn in (b, late, later)] == [0, 1, 2]
                second.close()
                assert [await place(turn) for turn in (late, later)] == [0, 0]

    run(main())


def test_all_who_wait_for_a_model_by_then_have_its_turn_so_that_it_is_loaded_once() -> None:
    async def main() -> None:
        all_ = turns()
        with ExitStack() as first:
            first.enter_context(all_.of("a"))
            with all_.of("b") as b, all_.of("c") as c, all_.of("b") as again:
                first.close()
                assert [await place(turn) for turn in (b, c, again)] == [0, 1, 0]

    run(main())


def test_who_is_gone_before_its_turn_leaves_the_queue() -> None:
    async def main() -> None:
        all_ = turns()
        with all_.of("a"):
            with all_.of("b"):
                pass
            with all_.of("a") as late:
                assert await place(late) == 0

    run(main())


def test_a_place_that_changes_is_told_at_once() -> None:
    async def main() -> None:
        all_ = turns()
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(all_.of("a"))
            second.enter_context(all_.of("b"))
            with all_.of("c") as third:
                async with aclosing(third.come()) as places:
                    assert (await anext(places)).place == 2
                    told = asyncio.ensure_future(anext(places))
                    first.close()
                    assert (await told).place == 1
                    second.close()
                    assert [waiting async for waiting in places] == []

    run(main())
