"""The callers that wait for the master: each has a ticket, and a future that ends with its answer."""

import asyncio
import itertools
from typing import Generic, TypeVar

_Granted = TypeVar("_Granted")


class Callers(Generic[_Granted]):
    """Who waits, by ticket; what they are granted is a `_Granted`."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[_Granted]] = {}

    def ticket(self) -> int:
        """The number of a new wish."""
        return next(self._tickets)

    def wait(self, ticket: int) -> asyncio.Future[_Granted]:
        """Have a caller wait. The future ends with `answer`."""
        waiting = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(lambda _: self._waiting.pop(ticket, None))
        return waiting

    def answer(self, ticket: int, granted: _Granted, error: BaseException | None) -> None:
        """End a caller's wait: with an error, or else with what it is granted."""
        waiting = self._waiting.get(ticket)
        if waiting is None or waiting.done():  # the caller of an unload was cancelled
            return
        match error:
            case None:
                waiting.set_result(granted)
            case asyncio.CancelledError():  # the node is shutting down
                waiting.cancel()
            case _:
                waiting.set_exception(error)
