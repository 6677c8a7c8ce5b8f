"""A process that hangs is noticed within five seconds, and one that hesitates is left alone."""

import asyncio

import pytest
from fake_time import run_at_once

from potluck.cluster.processes.watchdog import Watchdog


class Process:
    """Answers the questions that come while it does not hang."""

    def __init__(self) -> None:
        self.hangs = self.is_stuck = False
        self.hung_at: float | None = None
        self.watchdog = Watchdog(self.asked, self.hung)

    def asked(self) -> None:
        if not self.hangs:
            self.watchdog.answered(is_stuck=self.is_stuck)

    def hung(self) -> None:
        self.hung_at = asyncio.get_running_loop().time()


@pytest.mark.parametrize("frozen_s", [1.0, 2.0])
def test_one_that_hesitates_is_left_alone(frozen_s: float) -> None:
    async def main() -> None:
        process = Process()
        watching = asyncio.create_task(process.watchdog.run())
        for _ in range(3):
            process.hangs = True
            await asyncio.sleep(frozen_s)
            process.hangs = False
            await asyncio.sleep(2)
        watching.cancel()
        assert process.hung_at is None

    run_at_once(main())


@pytest.mark.parametrize("begins_s", [0.5, 0.9, 1.1])
def test_one_that_does_not_answer_is_noticed_within_five_seconds(begins_s: float) -> None:
    async def main() -> None:
        process = Process()
        watching = asyncio.create_task(process.watchdog.run())
        await asyncio.sleep(begins_s)
        process.hangs = True
        await watching
        assert process.hung_at is not None
        assert 2.0 < process.hung_at - begins_s < 5.0

    run_at_once(main())


def test_one_whose_computing_is_stuck_is_noticed_at_once() -> None:
    async def main() -> None:
        process = Process()
        process.is_stuck = True
        await process.watchdog.run()
        assert process.hung_at == pytest.approx(1.0)

    run_at_once(main())
