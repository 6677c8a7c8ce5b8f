"""Discoveries of several nodes on loopback, and waiting for what they say."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from potluck.ids import NodeId
from potluck.net.advert import Advert, Found
from potluck.net.discovery import Discovery
from potluck.net.interfaces import Interface

LOOPBACK = frozenset({Interface("127.0.0.1", 8, 1, is_virtual=False)})
# Other nodes may run on this computer, and are found too: the tests look at their own alone.
A, B, C, D = (NodeId(secrets.token_hex(32)) for _ in range(4))
NAMES = {A: "a", B: "b", C: "c", D: "d"}


class Watched:
    """A discovery, and a way to wait until it says something."""

    def __init__(self, node_id: NodeId, **options: Any) -> None:
        self._event = asyncio.Event()
        options = {"interfaces": lambda: LOOPBACK} | options
        self.discovery = Discovery(on_change=self._event.set, **options)
        self.advert = Advert(
            node_id=node_id, name=f"node {NAMES[node_id]}", role="worker", port=4000, protocol=1
        )

    def found(self) -> list[Found]:
        return [found for found in self.discovery.peers() if found.node_id in NAMES]

    def seen(self) -> list[str]:
        return [NAMES[found.node_id] for found in self.found()]

    async def until(self, fact: Callable[[list[Found]], bool]) -> list[Found]:
        async with asyncio.timeout(20):
            while not fact(self.found()):
                self._event.clear()
                await self._event.wait()
        return self.found()

    async def until_seen(self, *names: str) -> list[Found]:
        return await self.until(lambda found: [NAMES[f.node_id] for f in found] == list(names))

    async def answered(self, node_id: NodeId) -> None:
        """Wait until the node was asked, and answered or did not."""
        while (asking := self.discovery._resolving.get(node_id)) is not None:
            await asking


@asynccontextmanager
async def watching(node_id: NodeId, **options) -> AsyncIterator[Watched]:
    watched = Watched(node_id, **options)
    await watched.discovery.start(watched.advert)
    try:
        yield watched
    finally:
        await watched.discovery.stop()
