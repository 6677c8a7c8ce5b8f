"""The one thread that computes, behind a queue."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class ComputeThread(threading.Thread):
    """Runs what it is given, one after the other, until the process ends."""

    def __init__(self) -> None:
        super().__init__(name="compute", daemon=True)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            self._jobs.get()()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job that handles its own errors."""
        self._jobs.put(job)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function, and return or raise what it does."""
        future: Future[_T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
                future.set_exception(error)

        self._jobs.put(job)
        return await asyncio.wrap_future(future)
