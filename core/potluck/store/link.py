"""The connection of a weights transfer."""

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
