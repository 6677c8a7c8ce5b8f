"""Tasks of one owner: none is lost to the garbage collector, and none fails unheard."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


async def together(steps: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all at once; the first that fails ends the others, and its error is ours."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_thread(
    work: Callable[[Callable[[int, int], None]], _T], progress: Callable[[int, int], None]
) -> _T:
    """Run work that takes long in a thread; cancelled, it ends at its next report.

    Args:
        work: gets a function to which it reports what is done, and of how much.
        progress: told the same, in the event loop, until the work is over.
    """
    loop, is_over = asyncio.get_running_loop(), threading.Event()

    def report(done: int, total: int) -> None:
        if is_over.is_set():
            raise _NotWantedError
        loop.call_soon_threadsafe(tell, done, total)

    def tell(done: int, total: int) -> None:
        if not is_over.is_set():
            progress(done, total)

    try:
        return await asyncio.to_thread(work, report)
    finally:
        is_over.set()


class _NotWantedError(Exception):
    """Ends work in a thread that nobody waits for any more."""


class TaskSet:
    """Work that its owner starts and does not wait for. An error of it is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str | None = None
    ) -> asyncio.Task[None]:
        """Start the work."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel what is left, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task failed name=%s", task.get_name(), exc_info=error)
