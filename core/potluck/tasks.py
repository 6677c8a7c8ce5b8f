"""Tasks with an owner: they are not garbage-collected early, and their errors are not lost."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


async def together(steps: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all steps at once. The first that fails cancels the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_thread(
    work: Callable[[Callable[[int, int], None]], _T], progress: Callable[[int, int], None]
) -> _T:
    """Run long work in a thread. If the caller is cancelled, the work ends at its next report.

    Args:
        work: gets a function that it must call with how much is done, and the total.
        progress: called with the same values in the event loop, until the work is over.
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


def reschedule(deadline: asyncio.Timeout, seconds: float) -> None:
    """Move the end of an `asyncio.timeout` to so many seconds from now, unless it is over already.

    It may be over while its task has not run since: asyncio itself then raises an error.
    """
    with suppress(RuntimeError):
        deadline.reschedule(asyncio.get_running_loop().time() + seconds)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.wait([task])


async def every(
    seconds: float,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    what: str,
    at_once: bool = False,
) -> None:
    """Do some work again and again, until cancelled. A round that fails does not end it.

    Args:
        seconds: from the end of one round to the next, and before the first.
        work: one round.
        what: names the work in the log.
        at_once: the first round waits for nothing.
    """
    pause_s = 0.0 if at_once else seconds
    while True:
        await asyncio.sleep(pause_s)
        pause_s = seconds
        try:
            await work()
        except Exception as error:  # what one round met may be gone in the next
            is_known = isinstance(error, OSError)
            logger.warning("%s failed: %s", what, error, exc_info=not is_known)


class _NotWantedError(Exception):
    """Ends work in a thread that nobody waits for any more."""


class TaskSet:
    """Background tasks that their owner does not wait for. Their errors are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str | None = None
    ) -> asyncio.Task[None]:
        """Start a task."""
        return self.add(asyncio.create_task(work, name=name))

    def add(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Own a task that a library has started."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all tasks that still run, and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task failed name=%s", task.get_name(), exc_info=error)
