"""Two ends of a connection in memory, with back-pressure. They can be cut and tampered with."""

import asyncio
from collections import deque
from collections.abc import Callable

from potluck.errors import PeerLostError
from potluck.wire.messages import Message

Tamper = Callable[[Message, bytes], bytes]


class Channel:
    """One direction. As with a socket's buffer, messages sent before a cut still arrive."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[tuple[Message, bytes]] = deque()
        self._capacity = capacity
        self._changed = asyncio.Condition()
        self.is_cut = False

    async def put(self, message: Message, payload: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_cut or len(self._items) < self._capacity)
            if self.is_cut:
                raise PeerLostError("The connection ended.")
            self._items.append((message, payload))
            self._changed.notify_all()

    async def get(self) -> tuple[Message, bytes]:
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_cut or self._items)
            if not self._items:
                raise PeerLostError("The connection ended.")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    async def cut(self) -> None:
        async with self._changed:
            self.is_cut = True
            self._changed.notify_all()


class MemoryLink:
    """One end. `tamper` gets every message that is sent from here, and may change the payload."""

    def __init__(self, outgoing: Channel, incoming: Channel) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self.tamper: Tamper | None = None
        self.sent: list[Message] = []
        self.sent_bytes = 0  # of the payloads

    async def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        data = bytes(payload)
        if self.tamper is not None:
            data = self.tamper(message, data)
        await self._outgoing.put(message, data)
        self.sent.append(message)
        self.sent_bytes += len(data)

    async def receive(self) -> tuple[Message, memoryview]:
        message, data = await self._incoming.get()
        return message, memoryview(data)

    async def cut(self) -> None:
        await self._outgoing.cut()
        await self._incoming.cut()


def link_pair(capacity: int = 2) -> tuple[MemoryLink, MemoryLink]:
    """Return two ends. In each direction, `capacity` messages fit between them."""
    there, back = Channel(capacity), Channel(capacity)
    return MemoryLink(there, back), MemoryLink(back, there)
