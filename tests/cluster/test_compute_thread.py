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
