"""Discovery without a network: every node that announces itself is found by all others at once."""

from collections.abc import Callable
from typing import Any

from potluck.ids import NodeId
from potluck.net.addresses import Kept
from potluck.net.advert import Advert, Found
from potluck.wire.messages import Address


class Air:
    """The medium that carries the announcements."""

    def __init__(self) -> None:
        self.stations: list[FakeDiscovery] = []

    def discovery(self, *, on_change: Callable[[], None], **_: Any) -> "FakeDiscovery":
        return FakeDiscovery(self, on_change)

    def changed(self, by: "FakeDiscovery") -> None:
        for station in self.stations:
            if station is not by:
                station.on_change()


class FakeDiscovery:
    """Stands in for `Discovery`. `remembered` and `typed` list what it was asked to keep."""

    def __init__(self, air: Air, on_change: Callable[[], None]) -> None:
        self.on_change = on_change
        self.advert: Advert | None = None
        self.remembered: dict[NodeId, tuple[Address, ...]] = {}
        self.typed: list[str] = []
        self.forgotten: list[NodeId] = []
        self._air = air

    def peers(self) -> list[Found]:
        return [
            Found(
                node_id=advert.node_id,
                name=advert.name,
                role=advert.role,
                addresses=(Address(host="127.0.0.1", port=advert.port),),
                home=advert.home,
                joinable=advert.joinable,
                devices=advert.devices,
                protocol=advert.protocol,
            )
            for station in self._air.stations
            if station is not self and (advert := station.advert) is not None
        ]

    def hint(self) -> None:
        """Nobody is told that nobody is found."""

    def kept(self) -> dict[str, Kept]:
        return {n: Kept(name=n[:4], addresses=a) for n, a in self.remembered.items()}

    def forget(self, node_id: NodeId) -> None:
        self.forgotten.append(node_id)

    async def add_address(self, text: str) -> None:
        self.typed.append(text)

    def remember(self, node_id: NodeId, name: str, addresses: tuple[Address, ...]) -> None:
        self.remembered[node_id] = addresses

    def meet(self, node_id: NodeId, name: str, address: Address) -> None:
        self.remember(node_id, name, (address,))

    def drop(self, node_id: NodeId) -> None:
        self.remembered.pop(node_id, None)

    async def start(self, advert: Advert) -> None:
        self.advert = advert
        self._air.stations.append(self)
        self._air.changed(self)
        self.on_change()

    async def announce(self, advert: Advert) -> None:
        if self.advert is not None and advert != self.advert:
            self.advert = advert
            self._air.changed(self)

    async def refresh(self) -> None:
        """There are no interfaces to look at."""

    async def stop(self) -> None:
        self.advert = None
        if self in self._air.stations:
            self._air.stations.remove(self)
            self._air.changed(self)
