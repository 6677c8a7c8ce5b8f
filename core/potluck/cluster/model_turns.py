"""Which model answers, where one at a time is loaded: the requests for another one wait for their turn.

The requests for one model have their turn together. Who comes while others wait for another model waits behind them, so
that no model keeps the others out, and none is loaded in vain.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

from potluck.api.events import Waiting


class ModelTurn:
    """The turn of one request, or its place in the queue. `model` is its name; None: any."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self._place = 0  # from 1; 0: it has the turn
        self._moved = asyncio.Event()

    def move(self, place: int) -> None:
        """Take this place; 0: the turn has come."""
        if place != self._place:
            self._place = place
            self._moved.set()

    async def come(self) -> AsyncGenerator[Waiting, None]:
        """Yield the place in the queue whenever it is another one, until the turn has come."""
        while self._place:
            yield Waiting(place=self._place, seconds=None)
            await self._moved.wait()
            self._moved.clear()


class ModelTurns:
    """The requests under way, all of one model, and those that wait.

    Args:
        current: the name of the model that a request without one gets.

    Attributes:
        count: how many had their turn until now.
    """

    def __init__(self, current: Callable[[], str]) -> None:
        self._current = current
        self._model = ""  # of those under way
        self._under_way = 0
        self._queue: list[ModelTurn] = []
        self.count = 0

    @property
    def is_used(self) -> bool:
        return self._under_way > 0

    @contextmanager
    def of(self, model: str | None) -> Iterator[ModelTurn]:
        """Wait for this model, and have it, as long as the context is open; see `ModelTurn.come`."""
        turn = ModelTurn(model)
        self._queue.append(turn)
        self._move()
        try:
            yield turn
        finally:
            if turn in self._queue:
                self._queue.remove(turn)
            else:
                self._under_way -= 1
            self._move()

    def _move(self) -> None:
        """Let in whose turn it is, and tell the others their places."""
        if self._queue and not self._under_way:
            self._model = self._queue[0].model or self._current()
            self._let_in([turn for turn in self._queue if self._is_of_model(turn)])
        while self._queue and self._is_of_model(self._queue[0]):
            self._let_in(self._queue[:1])
        for place, turn in enumerate(self._queue, 1):
            turn.move(place)

    def _is_of_model(self, turn: ModelTurn) -> bool:
        return turn.model in (None, self._model)

    def _let_in(self, turns: list[ModelTurn]) -> None:
        self._queue = [turn for turn in self._queue if turn not in turns]
        self._under_way += len(turns)
        self.count += len(turns)
        for turn in turns:
            turn.move(0)
