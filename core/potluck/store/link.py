"""What both ends of a weights transfer need of a connection, and of tasks that fail together."""

import asyncio
from types import TracebackType
from typing import Protocol

from potluck.wire.messages import Message


class WeightsLink(Protocol):
    """A connection of purpose `weights`.

    A payload given to `send` belongs to the link from then on; one that `receive` returned belongs
    to the caller. Both raise `PeerLostError` when the connection has ended.
    """

    async def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        """Hand over, and wait while the connection has enough to do."""
        ...

    async def receive(self) -> tuple[Message, memoryview]:
        """The next message."""
        ...


class Together(asyncio.TaskGroup):
    """Tasks of which the first that fails ends the others; its error comes out as itself."""

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
