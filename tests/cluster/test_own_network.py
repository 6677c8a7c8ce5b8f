"""What the owner chose of the networks and the port, and what comes of it: a real listener, invented interfaces."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_cluster import Run
from whole_nodes import eventually, paired, seen

from potluck.api.values.network import Medium as Shown
from potluck.api.values.network import NetworkRequest
from potluck.cluster import own_network
from potluck.cluster.events import Changed, Events, Notice
from potluck.cluster.membership.remote import known_medium
from potluck.cluster.node import Node
from potluck.cluster.own_network import OwnNetwork
from potluck.cluster.presence import Presence
from potluck.errors import UsageError
from potluck.net.identity import Identity
from potluck.net.interfaces import ChosenInterfaces, Interface
from potluck.net.listener import Listener
from potluck.settings import Settings
from potluck.system.media import Media, Medium
from potluck.tasks import end
from potluck.wire import messages as wire
from potluck.wire.messages import Address

pytestmark = pytest.mark.net

LOOPBACK = Interface("127.0.0.1", 8, 1, is_virtual=False, name="lo")
CABLE = Interface("192.168.1.10", 24, 2, is_virtual=False, name="eth0")
CABLE6 = Interface("fd00::10", 64, 2, is_virtual=False, name="eth0")
WIFI = Interface("192.168.7.10", 24, 3, is_virtual=False, name="wlan0")
VPN = Interface("10.8.0.2", 24, 4, is_virtual=True, name="wg0")
DOCKER = Interface("172.17.0.1", 16, 5, is_virtual=True, name="docker0")


@dataclass
class Kept:
    """Stands in for `LendingSettings`, which keeps the settings."""

    saved: Settings = field(default_factory=Settings)

    def keep(self, **changes: Any) -> None:
        self.saved = Settings(
            **{"interfaces": self.saved.interfaces, "port": self.saved.port} | changes
        )


@dataclass(eq=False)
class OpenLink:
    """A control connection with another computer."""

    remote: Address
    why: str | None = None

    def close(self, why: str) -> None:
        self.why = why


class SeenMedia(Media):
    """Knows a cable of a gigabit."""

    def look(self, names: Any) -> dict[str, Medium]:
        return {"eth0": Medium("cable", 1000), "wlan0": Medium("wifi")}


@dataclass
class Rig:
    """A computer with a cable, Wi-Fi, a VPN and Docker."""

    folder: Path
    settings: Settings = field(default_factory=Settings)
    own: set[Interface] = field(
        default_factory=lambda: {LOOPBACK, CABLE, CABLE6, WIFI, VPN, DOCKER}
    )
    links: list[OpenLink] = field(default_factory=list[OpenLink])
    told: list[frozenset[Interface]] = field(default_factory=list[frozenset[Interface]])
    said: list[object] = field(default_factory=list[object])
    refreshed: int = 0

    def __post_init__(self) -> None:
        identity = Identity.load_or_create(self.folder, "Desk")
        self.interfaces = ChosenInterfaces(
            self.settings.interfaces, lambda: frozenset(self.own), frozenset
        )
        self.presence = Presence(identity, "Desk", self.interfaces)
        self.kept = Kept(self.settings)
        events = Events()
        for kind in (Notice, Changed):
            events.on(kind, self.said.append)

        async def unused(_link: object) -> None:
            raise AssertionError("nobody connects")

        self.listener = Listener(
            identity, me=self.presence.me, on_link=unused, host="127.0.0.1", preferred_port=None
        )
        self.network = OwnNetwork(
            self.interfaces,
            listener=self.listener,
            discovery=cast("Any", self),
            presence=self.presence,
            lending=cast("Any", self.kept),
            links=lambda: cast("Any", self.links),
            stages=lambda: cast("Any", (self,)),
            events=events,
            media=SeenMedia(),
        )

    async def refresh(self) -> None:
        """As `Discovery` has it."""
        self.refreshed += 1

    def end_links(self, own: frozenset[Interface]) -> None:
        """As a stage process has it."""
        self.told.append(own)

    @property
    def notices(self) -> list[str]:
        return [each.text for each in self.said if isinstance(each, Notice)]

    def hosts(self) -> list[str]:
        return [address.host for address in self.presence.addresses()]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@asynccontextmanager
async def stopping(rig: Rig) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await rig.listener.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as other:
        return other.getsockname()[1]


def test_a_chosen_network_is_used_at_once_and_connections_by_others_end(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        by_cable = OpenLink(Address(host="192.168.1.77", port=1))
        by_wifi = OpenLink(Address(host="192.168.7.77", port=1))
        by_loopback = OpenLink(Address(host="127.0.0.1", port=1))
        rig.links += [by_cable, by_wifi, by_loopback]
        await rig.network.change(NetworkRequest(interfaces=("wlan0", "wlan0")))

        assert rig.hosts() == ["192.168.7.10"]
        assert rig.kept.saved.interfaces == ("wlan0",)
        assert rig.refreshed == 1
        assert [link.why is not None for link in rig.links] == [True, False, False]
        assert rig.network.is_closed_at("192.168.1.10")
        assert not rig.network.is_closed_at("127.0.0.1")
        assert not rig.network.is_closed_at("192.168.1.99")  # that it has since a moment ago
        assert rig.network.avoids("10.8.0.9")
        assert [i for i in rig.told[-1] if i.is_used and not i.is_loopback] == [
            replace(WIFI, is_used=True)
        ]

        await rig.network.change(NetworkRequest(interfaces=()))
        assert "192.168.1.10" in rig.hosts()
        assert not rig.network.is_closed_at("192.168.1.10")
        assert len(rig.told) == 1  # there is nothing more to end

    run(main())


def test_whether_an_address_is_closed_is_known_without_a_look(tmp_path: Path, run: Run) -> None:
    """Every stranger who connects has it asked."""

    async def main() -> None:
        rig = Rig(tmp_path, Settings(interfaces=("wlan0",)))
        rig.own.clear()
        assert rig.network.is_closed_at("192.168.1.10")
        assert rig.network.avoids("10.8.0.9")
        await rig.network.look()
        assert not rig.network.is_closed_at("192.168.1.10")

    run(main())


def test_a_look_that_fails_is_not_the_last_one(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        looks = iter([OSError(errno.EMFILE, "Too many open files"), {"eth0": Medium("wifi")}])

        def look(_names: object) -> Mapping[str, Medium]:
            found = next(looks)
            if isinstance(found, OSError):
                raise found
            return found

        monkeypatch.setattr(own_network, "LOOK_S", 0.0)
        monkeypatch.setattr(rig.network._media, "look", look)
        running = asyncio.create_task(rig.network.run())
        while rig.network.medium() != Shown(kind="wifi"):
            assert not running.done()
            await asyncio.sleep(0)
        await end(running)

    run(main())


def test_a_chosen_network_that_goes_is_said_once_and_all_are_used_until_it_is_back(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, Settings(interfaces=("wlan0",)))
        await rig.network.look()
        assert rig.notices == []
        rig.own.remove(WIFI)
        for _ in range(3):
            await rig.network.look()

        (said,) = rig.notices
        assert said == "wlan0 is not there now. Until it is back, Potluck uses every network."
        assert "192.168.1.10" in rig.hosts()
        assert rig.network.view().missing == ("wlan0",)
        by_cable = OpenLink(Address(host="192.168.1.77", port=1))
        rig.links.append(by_cable)
        await rig.network.look()
        assert by_cable.why is None
        rig.own.add(WIFI)
        await rig.network.look()
        assert by_cable.why == "It uses another network now."
        assert rig.hosts() == ["192.168.7.10"]
        assert rig.network.view().missing == ()

    run(main())


def test_a_fixed_port_that_is_taken_at_the_start_is_said_and_another_one_used(
    tmp_path: Path, run: Run, taken: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, Settings(port=taken))
        await rig.network.listen()
        async with stopping(rig):
            view = rig.network.view()
            assert view.fixed_port == taken
            assert view.port == rig.listener.port != taken
            problem = (
                f"Potluck cannot listen at port {taken}: another program uses it. Choose another. Until"
                f" then, it listens at port {view.port}."
            )
            assert view.port_problem == problem
            assert rig.notices == [problem]

            await rig.network.change(NetworkRequest(port=0))
            assert rig.network.view().port_problem is None
            assert rig.kept.saved.port is None

    run(main())


def test_a_port_is_changed_at_once_or_not_at_all(tmp_path: Path, run: Run, taken: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        await rig.network.listen()
        async with stopping(rig):
            before = rig.presence.port()
            for port, why in ((taken, "another program uses it"), (80, "reserved for the system")):
                with pytest.raises(UsageError, match=why):
                    await rig.network.change(NetworkRequest(port=port))
            assert (rig.presence.port(), rig.kept.saved.port) == (before, None)

            port = free_port()
            await rig.network.change(NetworkRequest(port=port))
            assert rig.presence.port() == rig.listener.port == rig.kept.saved.port == port
            assert rig.network.view().fixed_port == port

    run(main())


def test_the_networks_of_the_home_are_shown_first(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        await rig.network.look()

        shown = rig.network.view().interfaces
        assert [(each.name, each.medium, each.mbit) for each in shown] == [
            ("eth0", "cable", 1000),
            ("wlan0", "wifi", None),
            ("wg0", "vpn", None),
            ("docker0", "virtual", None),
        ]
        assert shown[0].addresses == ("192.168.1.10", "fd00::10")

    run(main())


def test_what_others_reach_this_computer_over_is_the_cable_if_there_is_one(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        assert rig.network.medium() == Shown()  # before it has looked
        await rig.network.look()
        assert rig.network.medium() == Shown(kind="cable", mbit=1000)
        ways = {"192.168.7.77": "192.168.7.10", "10.8.0.9": "10.8.0.2", "127.0.0.1": "127.0.0.1"}
        monkeypatch.setattr(own_network, "leaves_from", ways.get)
        assert rig.network.medium_to("192.168.7.77") == Shown(kind="wifi")
        assert rig.network.medium_to("10.8.0.9") == Shown(kind="vpn")
        assert rig.network.medium_to("127.0.0.1") == Shown()
        assert rig.network.medium_to("203.0.113.9") == Shown()

        await rig.network.change(NetworkRequest(interfaces=("wlan0",)))
        assert rig.network.medium() == Shown(kind="wifi")

    run(main())


def test_a_medium_that_a_later_version_may_say_is_not_known() -> None:
    assert known_medium(wire.Medium(kind="wifi")) == Shown(kind="wifi")
    assert known_medium(wire.Medium(kind="laser", mbit=9)) == Shown()
    assert known_medium(None) == Shown()


@pytest.mark.slow
@pytest.mark.usefixtures("guide")
def test_a_computer_stays_connected_while_its_port_changes_and_is_found_at_the_new_one(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            (before,) = desk.membership.connected()
            port = free_port()
            await laptop.backend.change_network(NetworkRequest(port=port))
            shown = laptop.backend.state().node.network
            assert shown is not None
            assert (shown.port, shown.fixed_port) == (port, port)
            assert desk.membership.connected() == [before]
            assert not before.link.is_closed

            before.link.close("it comes back")
            await eventually(
                desk,
                lambda: [c.link.remote.port for c in desk.membership.connected()] == [port],
            )
            laptop.network.medium_to = lambda host: Shown(kind="wifi")
            laptop.events.changed()
            await eventually(desk, lambda: medium_of(desk, "Laptop") == Shown(kind="wifi"))

    run(main())


def medium_of(node: Node, name: str) -> Shown | None:
    computer = seen(node, name)
    return computer.medium if computer is not None else None
