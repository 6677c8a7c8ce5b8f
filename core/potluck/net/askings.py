"""Questions to other nodes that are under way: a bounded number, and the newest one is always asked."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from potluck.ids import NodeId
from potluck.tasks import TaskSet


class Askings:
    """One question to each node.

    Of too many, that to the stranger who was asked first is given up. So whoever announces many names
    that do not answer keeps nobody else from being asked.
    """

    def __init__(self, tasks: TaskSet, is_known: Callable[[NodeId], bool], most: int) -> None:
        """Make a set of questions.

        Args:
            tasks: own the questions.
            is_known: whether a node is none of the strangers, which are given up.
            most: so many questions may be under way.
        """
        self._tasks = tasks
        self._is_known = is_known
        self._most = most
        self._running: dict[NodeId, asyncio.Task[None]] = {}  # the oldest first

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._running

    def __len__(self) -> int:
        return len(self._running)

    def get(self, node_id: NodeId) -> asyncio.Task[None] | None:
        return self._running.get(node_id)

    def begin(self, node_id: NodeId, ask: Callable[[NodeId], Coroutine[Any, Any, None]]) -> None:
        """Ask a node that is not being asked. If all who are asked are known, do nothing."""
        if len(self) >= self._most:
            oldest = next((n for n in self._running if not self._is_known(n)), None)
            if oldest is None:
                return
            self._running.pop(oldest).cancel()
        self._running[node_id] = self._tasks.spawn(self._run(node_id, ask))

    async def _run(
        self, node_id: NodeId, ask: Callable[[NodeId], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await ask(node_id)
        finally:
            if self._running.get(node_id) is asyncio.current_task():  # it was not given up
                del self._running[node_id]
