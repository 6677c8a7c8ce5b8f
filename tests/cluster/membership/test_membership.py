"""Homes of real identities, TLS and control connections on loopback; no multicast."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from fake_cluster import run, until

from potluck.cluster.events import ComputerLost, ComputerPaired, Events, Holds
from potluck.cluster.membership import records
from potluck.cluster.membership.calls import MasterCalls
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.pairing import Pairings
from potluck.errors import PeerLostError
from potluck.ids import NodeId
from potluck.net.advert import Advert
from potluck.net.control_link import serve_control
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.transport import Link, Listener, identify
from potluck.wire.messages import (
    Address,
    DeviceId,
    DeviceInfo,
    HeldStage,
    Message,
    NodeInfo,
    Revoked,
    Status,
)
from potluck.wire.token import PairingToken

pytestmark = pytest.mark.net


class Node:
    """A computer that pairs, is found by its address alone, and keeps its home's computers connected."""

    def __init__(
        self, name: str, folder: Path, *, retry_s: Sequence[float] = (0.5, 1.0, 2.0, 5.0)
    ) -> None:
        self.name = name
        self.identity = Identity.load_or_create(folder / name, name)
        self.received: list[Message] = []
        self.served: list[Link] = []
        self.lost: list[NodeId] = []
        self.holds: list[Holds] = []
        self.hangs_up = False  # as soon as somebody is connected
        self.discovery = Discovery(
            on_change=self._found,
            remembered=folder / f"{name}.addresses.json",
            probe=lambda address: identify(address, self.identity),
            interfaces=frozenset,
        )
        events = Events()
        events.on(ComputerLost, lambda event: self.lost.append(event.node_id))
        events.on(Holds, self.holds.append)
        events.on(ComputerPaired, lambda event: self.membership.admit(event))
        self.membership = Members(
            identity=self.identity,
            discovery=self.discovery,
            local=cast("LocalComputer", None),  # membership only hands it on
            me=self.me,
            record_file=folder / f"{name}.computers.json",
            events=events,
            retry_s=retry_s,
        )
        self.calls = MasterCalls(identity=self.identity, addresses=self.discovery, me=self.me)
        self.desk = Pairings(
            self.identity,
            name=lambda: name,
            port=lambda: self.listener.port,
            may_join=lambda: True,
            events=events,
        )
        self.listener = Listener(
            self.identity,
            me=self.me,
            on_link=self._serve,
            on_pairing=self.desk.serve,
            host="127.0.0.1",
        )

    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id,
            name=self.name,
            version="0",
            os="Linux",
            arch="x",
            port=self.listener.port,
        )

    @property
    def node_id(self) -> NodeId:
        return self.identity.node_id

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.listener.port)

    def _found(self) -> None:
        self.membership.look()

    async def _serve(self, link: Link) -> None:
        """As `WorkerLinks` does, as far as trust goes."""
        self.served.append(link)
        if self.hangs_up:
            return
        self.membership.called(link)
        with suppress(PeerLostError), self.calls.during(link):
            await serve_control(link, lambda message: self._handle(link, message))

    async def _handle(self, link: Link, message: Message) -> None:
        self.received.append(message)
        if isinstance(message, Revoked):
            if self.node_id in message.node_ids:
                self.identity.remove_home(link.home)
            else:
                self.identity.set_revoked(link.home, map(NodeId, message.node_ids))

    @asynccontextmanager
    async def up(self) -> AsyncGenerator["Node", None]:
        async with self.listener:
            advert = Advert(
                node_id=self.node_id,
                name=self.name,
                role="idle",
                port=self.address.port,
                protocol=1,
            )
            await self.discovery.start(advert)
            try:
                yield self
            finally:
                await self.membership.stop()
                await self.discovery.stop()

    def connected(self) -> list[str]:
        return sorted(computer.name for computer in self.membership.connected())

    def revoked(self) -> frozenset[NodeId]:
        """As this computer knows it, of the first home it belongs to."""
        return next(iter(self.identity.homes.values())).revoked


@asynccontextmanager
async def all_up(nodes: Sequence[Node]) -> AsyncGenerator[None, None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.up())
        yield


async def pair_by_sight(master: Node, worker: Node) -> None:
    asked = await master.desk.ask([worker.address])
    await until(lambda: worker.desk.under_way(master.node_id))
    attempt = worker.desk.under_way(master.node_id)
    assert attempt is not None
    await master.desk.decide(asked.id, True)
    await worker.desk.decide(attempt.id, True)


async def pair_by_token(master: Node, worker: Node) -> None:
    token, _ = master.desk.invite([master.address])
    await worker.desk.join(PairingToken.parse(token), [])


@pytest.mark.parametrize("pair", [pair_by_sight, pair_by_token])
def test_who_is_paired_is_connected_without_multicast(tmp_path: Path, pair) -> None:
    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with all_up([desk, laptop]):
            assert desk.discovery.peers() == []
            await pair(desk, laptop)
            await until(desk.connected)

            assert desk.connected() == ["Laptop"]
            assert desk.membership.connected()[0].addresses == (laptop.address,)

    run(main())


def test_a_home_renames_limits_and_pauses_a_computer_and_keeps_that(tmp_path: Path) -> None:
    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with all_up([desk, laptop]):
            await pair_by_sight(desk, laptop)
            await until(desk.connected)
            (computer,) = desk.membership.connected()
            computer.offered = [DeviceInfo(kind="cpu", memory_total=16, memory_free=9)]
            change = desk.membership.change
            assert change(laptop.node_id, alias="Attic", paused=True, memory=4)

            assert [device.memory_free for device in computer.devices] == [4]
            assert desk.membership.available() == []
            assert desk.membership.leaving() == [computer]
            assert desk.membership.withheld() == {"Attic": "is paused by you"}
        again = Node("Desk", tmp_path)
        record = again.membership.records[laptop.node_id]
        assert (record.shown, record.paused, record.memory) == ("Attic", True, 4)
        assert again.membership.change(laptop.node_id, alias="", paused=False, memory=0)
        record = again.membership.records[laptop.node_id]
        assert (record.shown, record.paused, record.memory) == ("Laptop", False, None)
        assert not again.membership.change(again.node_id, alias="X", paused=None, memory=None)

    run(main())


def test_a_new_address_is_there_for_new_connections_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with all_up([desk, laptop]):
            await pair_by_sight(desk, laptop)
            await until(desk.connected)
            (before,) = desk.membership.connected()
            cable = Address(host="169.254.0.2", port=laptop.address.port)
            desk.discovery.meet(laptop.node_id, "Laptop", cable)

            assert desk.membership.connected() == [before]
            assert before.addresses == (laptop.address, cable)
            before.reached(desk.node_id, cable)
            assert before.addresses_from(desk.node_id) == (cable, laptop.address)

    run(main())


@pytest.mark.parametrize("pair", [pair_by_sight, pair_by_token])
def test_who_was_paired_is_found_again_after_a_restart(tmp_path: Path, pair) -> None:
    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with laptop.up():
            async with desk.up():
                await pair(desk, laptop)
                await until(desk.connected)
            again = Node("Desk", tmp_path)
            async with again.up():
                await again.discovery.probe()
                await until(again.connected)

    run(main())


def test_a_worker_with_another_address_calls_its_master_without_multicast(tmp_path: Path) -> None:
    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with desk.up():
            async with laptop.up():
                await pair_by_sight(desk, laptop)
                await until(desk.connected)
                calls = len(desk.served)
                await laptop.calls.call()  # it is connected, and has no reason to call
                assert len(desk.served) == calls
            again = Node("Laptop", tmp_path)
            async with again.up():
                assert again.address != laptop.address
                await again.discovery.probe()
                await again.calls.call()
                await until(desk.connected)

                assert desk.membership.connected()[0].addresses[0] == again.address

    run(main())


@pytest.mark.parametrize("pair", [pair_by_sight, pair_by_token])
def test_who_was_removed_and_paired_again_is_trusted_by_the_others(tmp_path: Path, pair) -> None:
    async def main() -> None:
        desk, laptop, mac = (Node(name, tmp_path) for name in ("Desk", "Laptop", "Mac"))
        async with all_up([desk, laptop, mac]):
            await pair_by_token(desk, mac)
            await pair_by_token(desk, laptop)
            await until(lambda: desk.connected() == ["Laptop", "Mac"])
            await desk.membership.forget(laptop.node_id)
            await until(lambda: mac.revoked() == {laptop.node_id})
            await pair(desk, laptop)
            await until(lambda: desk.connected() == ["Laptop", "Mac"])

            await until(lambda: not mac.revoked())

    run(main())


@pytest.mark.slow
def test_who_was_away_while_another_was_forgiven_hears_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        desk, laptop, mac = (Node(name, tmp_path) for name in ("Desk", "Laptop", "Mac"))
        async with all_up([desk, laptop]):
            async with mac.up():
                await pair_by_token(desk, mac)
                await until(lambda: desk.connected() == ["Mac"])
            mac.identity.set_revoked(next(iter(mac.identity.homes)), [laptop.node_id])
            await until(lambda: not desk.discovery.peers())
            again = Node("Mac", tmp_path)
            async with again.up():
                desk.membership.admit(
                    ComputerPaired(node_id=again.node_id, name="Mac", address=again.address)
                )
                await until(lambda: desk.connected() == ["Mac"])

                await until(lambda: not again.revoked())

    run(main())


def test_what_a_worker_holds_is_heard_of_when_it_changes(tmp_path: Path) -> None:
    held = HeldStage(
        device=DeviceId(kind="cpu"),
        model_id="c" * 64,
        scheme="f32",
        layers=(0, 2),
        embedding=True,
        head=False,
        epoch=5,
    )

    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path), Node("Laptop", tmp_path)
        async with all_up([desk, laptop]):
            await pair_by_token(desk, laptop)
            await until(lambda: laptop.served)
            for stages in ((held,), (held,), ()):
                await laptop.served[0].send(Status(devices=(), held=stages))
            await until(lambda: len(desk.holds) == 2)

            assert [holds.epoch for holds in desk.holds] == [5, None]
            assert desk.holds[0].node_id == laptop.node_id

    run(main())


@pytest.mark.slow
def test_who_hangs_up_again_and_again_is_dialled_ever_more_rarely(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Node("Desk", tmp_path, retry_s=(0.0, 0.1, 0.2))
        laptop = Node("Laptop", tmp_path)
        laptop.hangs_up = True
        async with all_up([desk, laptop]):
            began = asyncio.get_running_loop().time()
            await pair_by_token(desk, laptop)
            await until(lambda: len(laptop.served) == 4)

            assert asyncio.get_running_loop().time() - began > 0.1 + 0.2 + 0.2

    run(main())


def test_a_list_that_cannot_be_written_ends_no_connecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = records.write_atomically, [OSError(28, "No space left on device")]

    async def main() -> None:
        desk, laptop = Node("Desk", tmp_path, retry_s=(0.0,)), Node("Laptop", tmp_path)

        def full_once(path: Path, data: bytes) -> None:
            if failures and desk.connected():
                raise failures.pop()
            write(path, data)

        monkeypatch.setattr(records, "write_atomically", full_once)
        async with all_up([desk, laptop]):
            await pair_by_token(desk, laptop)
            laptop.name = "Renamed"
            for link in laptop.served:
                link.close()
            await until(lambda: not failures and desk.connected() == ["Renamed"])

    run(main())
