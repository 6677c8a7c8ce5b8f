"""Tasks that nobody waits for."""

import asyncio

import pytest

from potluck.cluster.tasks import TaskSet


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
