"""A master and a worker of its home over real TLS on loopback. Only the stage process is a fake."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from fake_engine import DEVICE, FakeEngine

from potluck.api.values.network import Medium
from potluck.cluster.computer import PATIENCE, Patience
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.worker.links import LinkTimes, WorkerLinks
from potluck.cluster.worker.worker import Worker
from potluck.errors import NotAllowedError, PeerLostError
from potluck.ids import HomeId
from potluck.net.control_link import serve_control
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import Listener, dial
from potluck.store.chunks import ChunkStore
from potluck.wire.messages import (
    Address,
    DeviceId,
    DeviceInfo,
    Message,
    NodeInfo,
    Purpose,
    Status,
    WarmingUp,
)


class Party:
    """One computer: an identity and a listener."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.identity = Identity.load_or_create(self.folder / "identity", name)
        self.port = 0

    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id, name=self.name, version="0", os="Linux", arch="x"
        )

    @property
    def node_id(self) -> Any:
        return self.identity.node_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        return (Address(host="127.0.0.1", port=self.port),)

    async def listen(self, stack: AsyncExitStack, on_link: Callable[[Link], Any]) -> None:
        async def no_pairing(link: object) -> None:
            raise AssertionError("everybody is paired here")

        listener = Listener(
            self.identity, me=self.me, on_link=on_link, on_pairing=no_pairing, host="127.0.0.1"
        )
        await stack.enter_async_context(listener)
        self.port = listener.port

    async def dial(self, other: "Party", home: HomeId, purpose: Purpose = "control") -> Link:
        return await dial(
            other.addresses,
            self.identity,
            home=home,
            peer=other.identity.node_id,
            purpose=purpose,
            me=self.me(),
        )


def join(master: Party, worker: Party) -> HomeId:
    home = master.identity.own_home or master.identity.create_home(f"{master.name}'s home")
    worker.identity.add_home(
        ca_pem=home.ca_pem,
        certificate_pem=master.identity.issue(worker.identity.certificate_der),
        name=home.name,
        master=master.identity.node_id,
    )
    return home.home_id


class Control:
    """A master's end of a control connection."""

    def __init__(self, link: Link, computer: RemoteComputer) -> None:
        self.link = link
        self.computer = computer
        self.said: list[Message] = []
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        with suppress(PeerLostError):
            await serve_control(self.link, self._handle)

    async def _handle(self, message: Message) -> None:
        self.said.append(message)
        if isinstance(message, WarmingUp):
            self.computer.warming_up(message)

    @property
    def statuses(self) -> list[Status]:
        return [message for message in self.said if isinstance(message, Status)]


class Rig:
    """The worker under test, and masters that dial it."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "Laptop",
        desk: Party | None = None,
        idle_s: float = 30.0,
    ) -> None:
        """Make a worker; `desk` is its master if another rig has it already."""
        self._folder = folder
        self._stack = AsyncExitStack()
        self.laptop, self.desk = Party(name, folder), desk or Party("Desk", folder)
        self.home = join(self.desk, self.laptop)
        self.engine = FakeEngine()
        self.store = ChunkStore(self.laptop.folder / "tensors", reserve=0)
        self.devices: tuple[DeviceInfo, ...] = (DEVICE,)
        self.removed: list[HomeId] = []
        self.worker = Worker(
            stage=self._engine, store=self.store, changed=lambda: self.links.announce()
        )
        self.worker.is_lending = True
        self.medium = Medium()
        self.links = WorkerLinks(
            medium_to=lambda _: self.medium,
            worker=self.worker,
            identity=self.laptop.identity,
            me=self.laptop.me,
            devices=lambda: self.devices,
            removed=self.removed.append,
            changed=lambda: self.links.announce(),
            handed_over=self._handed_over,
            times=LinkTimes(idle_s=idle_s, status_s=0.0),
        )

    async def _handed_over(self, link: Link, message: Message) -> Message:
        raise NotAllowedError("Nothing is handed over here.")

    async def _engine(self, device: DeviceId | None) -> Any:
        return self.engine

    async def __aenter__(self) -> "Rig":
        await self.laptop.listen(self._stack, self.links.serve)
        if not self.desk.port:
            await self.desk.listen(self._stack, _until_its_end)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.store.close()

    async def control(
        self,
        master: Party | None = None,
        home: HomeId | None = None,
        patience: Patience = PATIENCE,
    ) -> Control:
        """Dial the worker as its master does, and serve the connection."""
        party = master or self.desk
        link = await party.dial(self.laptop, home or self.home)
        computer = RemoteComputer(
            link,
            identity=party.identity,
            me=party.me,
            addresses=self.laptop.addresses,
            patience=patience,
        )
        control = Control(link, computer)

        async def end() -> None:
            link.close()
            await control.task

        self._stack.push_async_callback(end)
        return control

    async def another_home(self, name: str = "Ana's Mac") -> Control:
        party = Party(name, self._folder)
        return await self.control(party, join(party, self.laptop))


async def _until_its_end(link: Link) -> None:
    with suppress(PeerLostError):
        await link.receive()
