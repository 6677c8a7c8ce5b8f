"""Requests that wait for their turn, in the order in which they came."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

logger = logging.getLogger(__name__)

_WEIGHT = 0.2  # of the answer that ended last, in the mean time of an answer


class Turns:
    """Some requests at a time have a turn; the others wait, each with a place in the queue."""

    def __init__(self, count: int, clock: Callable[[], float]) -> None:
        """Let `count` requests at a time have a turn. `clock` returns seconds."""
        self._free, self._count, self._clock = count, count, clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._answer_s: float | None = None  # mean time of a turn

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    def wait_s(self, place: int) -> float | None:
        """About how many seconds the request at this place waits, from 1; None: no turn has ended yet."""
        return None if self._answer_s is None else self._answer_s * place / self._count

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of the block."""
        if self._free and not self._queue:
            self._free -= 1
        else:
            await self._wait()
        began = self._clock()
        try:
            yield
        finally:
            self._end(self._clock() - began)

    async def _wait(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mine)
        seconds = self.wait_s(self.waiting)
        about = "" if seconds is None else f", for about {seconds:.0f} s"
        logger.info("a request waits at place %d%s", self.waiting, about)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on()  # it was given the turn in the same moment
            else:
                self._queue.remove(mine)
            raise

    def _end(self, seconds: float) -> None:
        before = self._answer_s
        self._answer_s = seconds if before is None else before + _WEIGHT * (seconds - before)
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the first who waits."""
        while self._queue:
            first = self._queue.popleft()
            if not first.done():
                first.set_result(None)
                return
        self._free += 1
