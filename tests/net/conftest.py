"""Computers of a home for tests: identities, listeners and links on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from potluck.ids import HomeId
from potluck.net.identity import Identity
from potluck.net.transport import Link, Listener, PairingLink, dial
from potluck.wire.messages import Address, NodeInfo, Purpose


@dataclass
class Computer:
    """A node as far as the network sees it; links that it accepted come out of `links`."""

    identity: Identity
    name: str
    links: "asyncio.Queue[Link]" = field(default_factory=asyncio.Queue)
    pairings: "asyncio.Queue[PairingLink]" = field(default_factory=asyncio.Queue)
    port: int = 0
    clock: float | None = None  # its Unix time, if it says it

    @property
    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id,
            name=self.name,
            version="0.1",
            os="Linux",
            arch="x86_64",
            clock=self.clock,
        )

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port)

    @asynccontextmanager
    async def listening(self, **options: Any) -> AsyncIterator[Listener]:
        async def on_link(link: Link) -> None:
            await self.links.put(link)
            await link.wait_closed()

        async def on_pairing(link: PairingLink) -> None:
            await self.pairings.put(link)
            await link.wait_closed()

        options = {"host": "127.0.0.1", "on_link": on_link, "on_pairing": on_pairing} | options
        async with Listener(self.identity, me=lambda: self.me, **options) as listener:
            self.port = listener.port
            yield listener

    async def dial(
        self, other: "Computer", home: HomeId, purpose: Purpose = "control", **options: Any
    ) -> Link:
        return await dial(
            options.pop("addresses", [other.address]),
            self.identity,
            home=home,
            peer=options.pop("peer", other.identity.node_id),
            purpose=purpose,
            me=self.me,
            **options,
        )


@dataclass
class House:
    """A master with its home, and workers joined to it."""

    folder: Path

    def computer(self, name: str) -> Computer:
        return Computer(Identity.load_or_create(self.folder / name, name), name)

    def join(self, master: Computer, worker: Computer) -> HomeId:
        home = master.identity.create_home(f"{master.name}'s home")
        worker.identity.add_home(
            ca_pem=home.ca_pem,
            certificate_pem=master.identity.issue(worker.identity.certificate_der),
            name=home.name,
            master=master.identity.node_id,
        )
        return home.home_id

    def pair(self) -> tuple[Computer, Computer, HomeId]:
        master, worker = self.computer("master"), self.computer("worker")
        return master, worker, self.join(master, worker)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def run_within(work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return asyncio.run(bounded())

    return run_within
