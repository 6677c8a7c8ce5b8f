"""The connection of a weights transfer, and a group of tasks that fail together."""

import asyncio
from types import TracebackType
from typing import Protocol

from potluck.wire.messages import Message


class WeightsLink(Protocol):
    """A connection of purpose `weights`.

    A payload given to `send` belongs to the link from then on. A payload that `receive` returned
    belongs to the caller. Both methods raise `PeerLostError` when the connection has ended.
    """

    async def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        """Send a message, and wait while the connection's send buffer is full."""
        ...

    async def receive(self) -> tuple[Message, memoryview]:
        """Return the next message."""
        ...


class Together(asyncio.TaskGroup):
    """A task group whose first error cancels the others and is raised itself, not in a group."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
