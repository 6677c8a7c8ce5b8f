"""A worker that leaves politely: it says so, and computes on until its masters do without it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from potluck.cluster.worker.worker import Worker

LEAVE_S = 30.0  # a master that has not planned without this computer by then loses it


class Leaving:
    """One departure at a time of this computer.

    While `worker.is_leaving` is true, the masters are told that the computer leaves, nothing new is
    begun, and what is loaded goes on.
    """

    def __init__(self, worker: Worker, *, changed: Callable[[], None]) -> None:
        """`changed` is called when the masters have to be told something else."""
        self._worker = worker
        self._changed = changed
        self._at_once = asyncio.Event()  # nobody wants to wait any longer

    async def leave(self, limit_s: float = LEAVE_S) -> None:
        """Return when no master needs the computer any more, or after `limit_s` seconds."""
        worker = self._worker
        if worker.is_idle.is_set() or limit_s <= 0:
            return
        self._at_once.clear()
        worker.is_leaving = True
        self._changed()
        waits = [asyncio.ensure_future(e.wait()) for e in (worker.is_idle, self._at_once)]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            worker.is_leaving = False
            self._changed()

    def go(self) -> None:
        """End the departure that is under way at once, because its owner cannot wait."""
        self._at_once.set()
