"""Computers that pair over real TLS on loopback; they can do nothing else."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from fake_cluster import until

from potluck.api.values.pairing import Pairing as PairingView
from potluck.cluster.events import Changed, ComputerPaired, Events, HomeJoined
from potluck.cluster.membership.pairing import Pairings
from potluck.net.identity import Identity
from potluck.net.pairing_link import PairingLink
from potluck.net.transport import Listener
from potluck.wire.messages import Address, NodeInfo
from potluck.wire.token import PairingToken


class Side:
    """The pairing part of a computer."""

    def __init__(self, name: str, folder: Path, **times: float) -> None:
        """`times` are those of `Pairings`."""
        self.name = name
        self.identity = Identity.load_or_create(folder / name, name)
        self.joinable = True
        self.admitted: list[ComputerPaired] = []
        self.addresses: list[Address] = []  # where each admitted computer listens
        self.joined: list[HomeJoined] = []
        self.homes_when_told: list[int] = []  # number of stored homes at each call of `joined`
        self.changes = 0
        self.port = 4711  # a placeholder until the side listens
        self.links: list[PairingLink] = []
        events = Events()
        events.on(ComputerPaired, self._on_admitted)
        events.on(HomeJoined, self._on_joined)
        events.on(Changed, lambda _: self._changed())
        self.desk = Pairings(
            self.identity,
            name=lambda: self.name,
            port=lambda: self.port or 4000,
            may_join=lambda: self.joinable,
            events=events,
            **times,
        )

    def _on_admitted(self, paired: ComputerPaired) -> None:
        self.admitted.append(paired)
        self.addresses.append(paired.address)

    def _on_joined(self, joined: HomeJoined) -> None:
        self.joined.append(joined)
        self.homes_when_told.append(len(self.identity.homes))

    def _changed(self) -> None:
        self.changes += 1

    async def _serve(self, link: PairingLink) -> None:
        self.links.append(link)
        await self.desk.serve(link)

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Side", None]:
        me = NodeInfo(
            node_id=self.identity.node_id, name=self.name, version="0", os="Linux", arch="x"
        )

        async def no_link(link: object) -> None:
            raise AssertionError("nobody is a member here")

        async with Listener(
            self.identity, me=lambda: me, on_link=no_link, on_pairing=self._serve, host="127.0.0.1"
        ) as listener:
            self.port = listener.port
            yield self

    @property
    def state(self) -> str:
        return self.desk.views()[-1].state

    def knows(self, other: "Side") -> bool:
        return any(home.master == other.identity.node_id for home in self.identity.homes.values())


Sides = tuple[Side, Side]


@asynccontextmanager
async def comparing(master: Side, worker: Side) -> AsyncGenerator[PairingView, None]:
    """Let the worker listen, and yield when both screens show digits."""
    async with worker.listening():
        asked = await master.desk.ask([worker.address])
        await until(lambda: worker.desk.views() and worker.desk.views()[0].code)
        yield asked


def token_of(master: Side) -> PairingToken:
    token, expires_s = master.desk.invite([master.address])
    assert expires_s > 0
    return PairingToken.parse(token)
