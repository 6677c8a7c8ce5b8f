"""Tasks that nobody waits for."""

import asyncio

import pytest

from potluck.cluster.tasks import TaskSet, together


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
