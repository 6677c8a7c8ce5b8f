"""Requests that wait for their turn, in the order in which they came.

Nobody knows how many conversations the caches of all computers have room for: their lengths differ.
So the number of turns follows what happens. When an answer loses its caches to others, it gives way,
and only as many have a turn as go on. After that, one more is tried from time to time.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from potluck.api.events import Waiting

logger = logging.getLogger(__name__)

_WEIGHT = 0.2  # of the answer that ended last, in the mean time of an answer
_GROWTH = 0.25  # turns more with each answer that ends


class Turn:
    """The turn of one request, or its place in the queue."""

    def __init__(self, turns: "Turns", number: int, began: float) -> None:
        self.number = number  # the order in which requests came
        self.place = 0  # in the queue, from 1; 0: it has the turn
        self.began = began
        self._turns = turns
        self._moved = asyncio.Event()

    def move(self, place: int) -> None:
        """Take this place."""
        if place != self.place:
            self.place = place
            self._moved.set()

    async def come(self) -> Waiting | None:
        """Wait until the place is another one than at the last call, and return it.

        Returns:
            None: this request has the turn.
        """
        while self.place and not self._moved.is_set():
            try:
                async with asyncio.timeout(self._turns.idle_s):
                    await self._moved.wait()
            except TimeoutError:
                self._turns.try_one_more()
        self._moved.clear()
        if not self.place:
            return None
        return Waiting(place=self.place, seconds=self._turns.wait_s(self.place))

    def give_way(self) -> bool:
        """Go back into the queue, because the caches of this answer had to make room: see `come`.

        Two answers whose caches do not fit in memory together would push each other out at every
        token. So one of them waits, and there is always one that goes on.

        Returns:
            Whether there is another answer to wait for.
        """
        return self._turns.give_way(self)

    def goes_on(self) -> None:
        """Note that this answer has got a token."""
        self._turns.goes_on()


class Turns:
    """Some requests at a time have a turn; the others wait, each with a place in the queue.

    Attributes:
        idle: set while no request has a turn, or waits for one.
    """

    def __init__(
        self,
        most: int,
        clock: Callable[[], float],
        *,
        idle_s: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Let requests take turns.

        Args:
            most: requests that have a turn at a time, if memory has room for them.
            clock: seconds.
            idle_s: when no answer has got a token for so long, those that have a turn are not waited
                for any longer: their readers may have stopped reading.
            changed: called when the queue has changed.
        """
        self.idle_s = idle_s
        self.idle = asyncio.Event()
        self.idle.set()
        self._most, self._clock, self._changed = most, clock, changed
        self._room = float(most)  # turns at a time, as far as is known
        self._running = 0
        self._began = 0
        self._queue: list[Turn] = []
        self._answer_s: float | None = None  # mean time of a turn
        self._last_token = clock()
        self._told = (0, False)  # how many waited, and whether one had a turn, when that was told

    @property
    def running(self) -> int:
        """How many requests have a turn."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    def wait_s(self, place: int) -> float | None:
        """About how many seconds the request at this place waits, from 1; None: no turn has ended yet."""
        return None if self._answer_s is None else self._answer_s * place / max(1, self._running)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Have a place in the queue, and then the turn, until the end of the block: see `Turn.come`."""
        self._began += 1
        turn = Turn(self, self._began, self._clock())
        self._queue.append(turn)
        self.idle.clear()
        self._admit()
        try:
            yield turn
        finally:
            self._end(turn)

    def _end(self, turn: Turn) -> None:
        if turn.place:
            self._queue.remove(turn)
        else:
            self._running -= 1
            self._room = min(self._most, self._room + _GROWTH)
            seconds, before = self._clock() - turn.began, self._answer_s
            self._answer_s = seconds if before is None else before + _WEIGHT * (seconds - before)
        if not self._running and not self._queue:
            self.idle.set()
        self._admit()

    def _admit(self) -> None:
        """Give turns to the first who wait, as long as there is room, and places to the others."""
        while self._queue and self._running < max(1, int(self._room)):
            first = self._queue.pop(0)
            self._running += 1
            first.began = self._clock()
            first.move(0)
        for place, turn in enumerate(self._queue, 1):
            turn.move(place)
        now = (self.waiting, self._running > 0)
        if self._told != now:
            self._told = now
            self._changed()

    # --- what a turn says of its answer

    def give_way(self, turn: Turn) -> bool:
        """Put a turn back into the queue, before those that came later; False: it is the only one."""
        if self._running < 2:
            return False
        self._running -= 1
        self._room = float(self._running)
        insort(self._queue, turn, key=lambda each: each.number)
        self._admit()
        return True

    def goes_on(self) -> None:
        """Note that an answer has got a token."""
        self._last_token = self._clock()

    def try_one_more(self) -> None:
        """Let one more request begin, if nothing has come for those that have a turn."""
        if self._clock() - self._last_token >= self.idle_s:
            self._room = min(self._most, self._running + 1)
            self._admit()
