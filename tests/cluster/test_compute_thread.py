import asyncio
import threading

import pytest
from fake_cluster import run

from potluck.cluster.compute_thread import ComputeThread


def test_what_is_submitted_runs_in_order_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        for number in range(5):
            thread.submit(lambda number=number: seen.append((number, threading.get_ident())))
        assert await thread.call(lambda: len(seen)) == 5

        assert [number for number, _ in seen] == list(range(5))
        assert {ident for _, ident in seen} == {thread.ident}

    run(main())


def test_what_a_function_raises_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        with pytest.raises(ValueError, match="no"):
            await thread.call(fail)
        assert await thread.call(lambda: 3) == 3

    run(main())


def test_what_is_cancelled_before_its_turn_is_not_run_and_the_next_one_is() -> None:
    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        is_busy, may_go_on = threading.Event(), threading.Event()
        ran: list[str] = []

        def busy() -> None:
            is_busy.set()
            may_go_on.wait()

        first = asyncio.create_task(thread.call(busy))
        second = asyncio.create_task(thread.call(lambda: ran.append("cancelled")))
        await asyncio.to_thread(is_busy.wait)
        second.cancel()
        await asyncio.wait([second])
        may_go_on.set()
        await first
        await thread.call(lambda: ran.append("next"))

        assert ran == ["next"]

    run(main(), timeout_s=10)


def test_what_is_cancelled_while_it_runs_leaves_the_thread_alive() -> None:
    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        is_busy, may_go_on = threading.Event(), threading.Event()

        def busy() -> None:
            is_busy.set()
            may_go_on.wait()

        running = asyncio.create_task(thread.call(busy))
        await asyncio.to_thread(is_busy.wait)
        running.cancel()
        await asyncio.wait([running])
        may_go_on.set()

        assert await thread.call(lambda: 3) == 3

    run(main(), timeout_s=10)
