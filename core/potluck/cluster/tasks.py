"""Tasks of one owner: none is lost to the garbage collector, and none fails unheard."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
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
