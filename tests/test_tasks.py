"""Tasks that nobody waits for."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from fake_cluster import until

from potluck.tasks import TaskSet, every, in_thread, reschedule, together


def test_an_error_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("the disk is full")

    async def main() -> None:
        task = TaskSet().spawn(fail(), name="writer")
        await asyncio.wait([task])

    asyncio.run(main())

    (record,) = caplog.records
    assert "writer" in record.getMessage()
    assert record.exc_info is not None
    assert "the disk is full" in str(record.exc_info[1])


def test_stopping_ends_what_runs_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> bool:
        tasks = TaskSet()
        forever = tasks.spawn(asyncio.sleep(3600))
        await tasks.stop()
        return forever.cancelled()

    assert asyncio.run(main())
    assert not caplog.records


def test_together_gives_all_results_in_their_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    async def main() -> list[int]:
        return await together(after(turns) for turns in (3, 1, 2))

    assert asyncio.run(main()) == [3, 1, 2]


def test_the_first_failure_ends_the_others_and_is_the_error() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("waiting")

    async def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(together([wait(), fail()]))
    assert ended == ["waiting"]


def test_work_in_a_thread_that_nobody_waits_for_any_more_ends_at_its_next_report() -> None:
    """Else a model of 40 GB would be read to its end, and the node would wait for that to end."""
    may_report, heard, ends = threading.Event(), list[int](), list[str]()

    def work(report: Callable[[int, int], None]) -> None:
        try:
            report(1, 10)
            may_report.wait(10)
            report(2, 10)
            ends.append("read to the end")
        except Exception as error:
            ends.append(type(error).__name__)
            raise

    async def main() -> None:
        task = asyncio.create_task(in_thread(work, lambda done, total: heard.append(done)))
        await until(lambda: heard)
        task.cancel()
        await asyncio.wait([task])
        may_report.set()
        await asyncio.get_running_loop().shutdown_default_executor()

        assert task.cancelled()

    asyncio.run(main())

    assert heard == [1]
    assert ends == ["_NotWantedError"]


def test_work_in_a_thread_gives_its_result_and_says_how_far_it_is() -> None:
    heard: list[tuple[int, int]] = []

    def work(report: Callable[[int, int], None]) -> str:
        report(1, 2)
        report(2, 2)
        return "done"

    async def main() -> str:
        return await in_thread(work, lambda done, total: heard.append((done, total)))

    assert asyncio.run(main()) == "done"
    assert heard == [(1, 2), (2, 2)]


def test_a_round_that_fails_does_not_end_the_rounds(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[None] = []

    async def main() -> None:
        done = asyncio.Event()

        async def work() -> None:
            rounds.append(None)
            if len(rounds) == 3:
                done.set()
            raise (OSError("no network"), ZeroDivisionError("a peer's answer"))[len(rounds) % 2]

        tasks = TaskSet()
        tasks.spawn(every(0, work, what="asking around"))
        await done.wait()
        await tasks.stop()

    asyncio.run(main())

    assert "asking around failed: no network" in caplog.text
    assert [bool(record.exc_info) for record in caplog.records[:2]] == [True, False]


@pytest.mark.parametrize("late", [0, 60])
def test_a_deadline_that_is_over_is_not_moved(late: float) -> None:
    """A report that comes in the same turn of the loop as the end."""

    async def wait(deadline: asyncio.Timeout) -> None:
        async with deadline:
            reschedule(deadline, 0)
            while not deadline.expired():  # this task has not run since
                asyncio.get_running_loop().call_soon(reschedule, deadline, late)
                await asyncio.sleep(0)

    async def main() -> None:
        deadline = asyncio.timeout(None)
        with pytest.raises(TimeoutError):
            await wait(deadline)
        reschedule(deadline, late)
        assert deadline.expired()

    asyncio.run(main())


def test_a_deadline_is_moved_to_later() -> None:
    async def main() -> float:
        async with (deadline := asyncio.timeout(0)):
            reschedule(deadline, 60)
            for _ in range(3):
                await asyncio.sleep(0)
        return (deadline.when() or 0) - asyncio.get_running_loop().time()

    assert 59 < asyncio.run(main()) <= 60
