"""A worker that leaves politely: it says so, and computes on until its masters do without it."""

import asyncio
from collections.abc import Callable

from potluck.cluster.worker.worker import Worker

LEAVE_S = 30.0  # a master that has not planned without this computer by then loses it


class Leaving:
    """One departure at a time of this computer.

    While `worker.is_leaving` is true, the masters are told that the computer leaves, nothing new is
    begun, and what is loaded goes on.
    """

    def __init__(
        self, worker: Worker, *, changed: Callable[[], None], limit_s: float = LEAVE_S
    ) -> None:
        """Make one without a departure.

        Args:
            worker: of this computer.
            changed: called when the masters have to be told something else.
            limit_s: longest time that the masters have; 0: none.
        """
        self._worker = worker
        self._limit_s = limit_s
        self._changed = changed
        self._at_once = asyncio.Event()  # nobody wants to wait any longer

    def begin(self) -> None:
        """Say that the computer leaves, if a master needs it. Call it before it is paused."""
        if self._worker.is_idle.is_set() or self._limit_s <= 0:
            return
        self._at_once.clear()
        self._worker.is_leaving = True
        self._changed()

    async def end(self) -> None:
        """Return when no master needs the computer any more, and after the limit at the latest."""
        worker = self._worker
        if not worker.is_leaving:
            return
        waits = [asyncio.ensure_future(e.wait()) for e in (worker.is_idle, self._at_once)]
        try:
            await asyncio.wait(waits, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            worker.is_leaving = False
            self._changed()

    def go(self) -> None:
        """End the departure that is under way at once, because its owner cannot wait."""
        self._at_once.set()
