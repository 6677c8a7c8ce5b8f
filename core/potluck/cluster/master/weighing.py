"""Now and then the plan in force is weighed against others: computers came, leave, or have changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from potluck.cluster.master.improvement import can_be_improved
from potluck.cluster.master.state import State, leavers
from potluck.errors import PotluckError
from potluck.tasks import TaskSet

logger = logging.getLogger(__name__)


class Weighing:
    """Has a better plan looked for, one at a time.

    Args:
        state: what the master knows now.
        is_broken: whether the plan in force cannot compute any more.
        improve: makes a better plan, and puts it into force.
        wait_s: how long is waited before, unless a computer leaves.
    """

    def __init__(
        self,
        state: Callable[[], State],
        is_broken: Callable[[], bool],
        improve: Callable[[], Awaitable[object]],
        wait_s: float,
    ) -> None:
        self._state, self._is_broken = state, is_broken
        self._improve, self._wait_s = improve, wait_s
        self._tasks = TaskSet()
        self.is_under_way = False

    def look(self) -> None:
        """Begin if there may be a better plan."""
        if not self.is_under_way and can_be_improved(self._state()):
            self.is_under_way = True
            self._tasks.spawn(self._weigh(), name="improve")

    async def _weigh(self) -> None:
        try:
            if not leavers(self._state()):
                await asyncio.sleep(self._wait_s)
            if can_be_improved(self._state()) and not self._is_broken():
                await self._improve()
        except PotluckError as error:
            logger.info("the plan in force was not weighed with another: %s", error)
        finally:
            self.is_under_way = False
