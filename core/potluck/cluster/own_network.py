"""By which networks and at which port other computers reach this one, as its owner has chosen."""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from potluck.api.values import network as schema
from potluck.api.values.network import Medium
from potluck.cluster.events import Events, Notice
from potluck.cluster.presence import Presence
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.worker.lending import LendingSettings
from potluck.errors import UsageError
from potluck.net.discovery import Discovery
from potluck.net.interfaces import (
    ChosenInterfaces,
    Interface,
    is_avoided,
    is_tunnel,
    leaves_from,
)
from potluck.net.link import Link
from potluck.net.listener import Listener
from potluck.net.peer_link import PeerLink, end_avoided
from potluck.system.media import Media
from potluck.system.media import Medium as SeenMedium
from potluck.tasks import every

_PREFERRED: Final[tuple[schema.MediumKind, ...]] = ("cable", "wifi", "vpn", "virtual", "")
LOOK_S: Final = 3.0  # between two looks at what the interfaces are


class OwnNetwork:
    """Applies what the owner chose, and sees what the interfaces of this computer are.

    Args:
        interfaces: those of this computer, some of which are chosen.
        listener: takes the connections of other computers.
        discovery: finds them.
        presence: says where this computer is.
        lending: keeps the settings.
        links: all connections with other computers, of whatever purpose.
        stages: the stage processes, which have connections of their own.
        events: receives `Notice`, and a change of what clients are shown.
        media: looks at what the interfaces are.
    """

    def __init__(
        self,
        interfaces: ChosenInterfaces,
        *,
        listener: Listener[Link],
        discovery: Discovery,
        presence: Presence,
        lending: LendingSettings,
        links: Callable[[], Iterable[PeerLink]],
        stages: Callable[[], Iterable[StageHandle]],
        events: Events,
        media: Media | None = None,
    ) -> None:
        self._interfaces = interfaces
        self._listener = listener
        self._discovery = discovery
        self._presence = presence
        self._lending = lending
        self._links, self._stages = links, stages
        self._events = events
        self._media = media if media is not None else Media()
        self._own = interfaces()  # as it was seen last
        self._seen: Mapping[str, SeenMedium] = {}
        self._missing: tuple[str, ...] = ()
        self._port_problem: str | None = None

    # --- what is used

    async def listen(self) -> None:
        """Listen at the port that was chosen, or at another one if that is taken."""
        fixed = self._lending.saved.port
        try:
            await self._listener.start(fixed or 0)
        except UsageError as error:
            if fixed is None:
                raise
            await self._listener.start(0)
            self._port_problem = (
                f"{error.message} Until then, it listens at port {self._listener.port}."
            )
            self._events.publish(Notice(level="warning", text=self._port_problem))
        self._presence.listens(self._listener.port)

    async def change(self, request: schema.NetworkRequest) -> None:
        """Use other networks, or another port, from now on. Connections in other networks are ended.

        Raises:
            UsageError: the port is taken, or may not be used. Then nothing is changed.
        """
        if request.port is not None:
            await self._move(request.port)
        if request.interfaces is not None:
            self._lending.keep(interfaces=tuple(dict.fromkeys(request.interfaces)))
            self._interfaces.names = self._lending.saved.interfaces
            await self._discovery.refresh()
            own = self._own = self._interfaces()
            self._end_avoided(own)
            self._missing = self._interfaces.missing(own)
        self._events.changed()

    def _end_avoided(self, own: frozenset[Interface]) -> None:
        """End the connections in networks that are not used, those of the stage processes as well."""
        if all(i.is_used for i in own):
            return
        end_avoided(self._links(), own)
        for stage in self._stages():
            stage.end_links(own)

    async def _move(self, port: int) -> None:
        if 0 < port < schema.LOWEST_PORT:
            raise UsageError(
                f"Port {port} is reserved for the system. Choose one from {schema.LOWEST_PORT} to 65535."
            )
        await self._listener.move(port)
        self._port_problem = None
        self._presence.listens(self._listener.port)
        self._lending.keep(port=port or None)

    def is_closed_at(self, host: str) -> bool:
        """Whether an address of this computer belongs to a network that is not used, as was seen last."""
        if not self._interfaces.names:
            return False
        ip = ipaddress.ip_address(host.partition("%")[0])
        same = [i for i in self._own if i.ip == ip]
        return bool(same) and not any(i.is_used for i in same)

    def avoids(self, host: str) -> bool:
        """Whether nobody is to be dialled at an address: it is in a network that is not used, as was seen last."""
        return bool(self._interfaces.names) and is_avoided(host, self._own)

    # --- what is seen

    async def run(self) -> None:
        """See what the interfaces are, and say so when a chosen one goes, until it is cancelled."""
        await every(LOOK_S, self.look, what="looking at the networks", at_once=True)

    async def look(self) -> None:
        """Look once."""
        own = self._own = self._interfaces()
        missing, names = self._interfaces.missing(own), {i.name for i in own}
        seen = await asyncio.to_thread(self._media.look, names)
        if missing and missing != self._missing and missing == self._interfaces.names:
            text = f"{' and '.join(missing)} is not there now. Until it is back, Potluck uses every network."
            self._events.publish(Notice(level="warning", text=text))
        self._end_avoided(self._own)  # a network may be back, or another one chosen meanwhile
        if (seen, missing) != (self._seen, self._missing):
            self._seen, self._missing = seen, missing
            self._events.changed()

    def medium_to(self, host: str) -> Medium:
        """What the way to another computer goes over, at this computer's end of it."""
        here = leaves_from(host)
        return next((self._medium(i) for i in self._interfaces() if i.address == here), Medium())

    def medium(self) -> Medium:
        """What others reach this computer over: a cable, if there is one."""
        media = [self._medium(i) for i in self._interfaces() if i.is_used and not i.is_virtual]
        return min(media, key=lambda medium: _PREFERRED.index(medium.kind), default=Medium())

    def view(self) -> schema.Network:
        """What clients are shown."""
        own, saved = self._interfaces(), self._lending.saved
        return schema.Network(
            interfaces=tuple(self._views(own)),
            chosen=self._interfaces.names,
            missing=self._interfaces.missing(own),
            port=self._presence.port(),
            fixed_port=saved.port,
            port_problem=self._port_problem,
        )

    def _views(self, own: Iterable[Interface]) -> Iterable[schema.Interface]:
        """The interfaces: those of the home first, then those of VPNs, then the virtual ones."""
        by_name: dict[str, list[Interface]] = {}
        for each in sorted(own, key=lambda i: (i.is_virtual, not is_tunnel(i.name), i.name)):
            if not each.is_loopback:
                by_name.setdefault(each.name, []).append(each)
        for name, each in by_name.items():
            medium = self._medium(each[0])
            best = sorted(each, key=lambda i: (i.ip.is_link_local, i.ip.version, i))
            yield schema.Interface(
                name=name,
                medium=medium.kind,
                mbit=medium.mbit,
                addresses=tuple(i.address for i in best),
                used=each[0].is_used,
            )

    def _medium(self, interface: Interface) -> Medium:
        if not interface.is_virtual:
            seen = self._seen.get(interface.name, SeenMedium())
            return Medium(kind=seen.kind, mbit=seen.mbit)
        return Medium(kind="vpn" if is_tunnel(interface.name) else "virtual")
