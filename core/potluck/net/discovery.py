"""Find the other nodes: multicast DNS, addresses typed by hand, and addresses that worked before.

The service is `_potluck._tcp.local.`. An instance is named by its node id, so that two nodes on one
computer do not clash, nor two computers of the same name. `advert.py` has the fields that are
announced.

Some access points and VPNs drop multicast. Potluck therefore also asks typed and remembered
addresses, every few seconds, which node answers there, until the node is found.

A node is removed when it says goodbye, when its records expire (after a minute; zeroconf asks once
more before that), or by `forget`, when a connection shows that it is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from zeroconf import (
    DNSQuestionType,
    IPVersion,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from potluck.ids import NodeId, short
from potluck.net.addresses import AddressBook, Kept, Probe
from potluck.net.advert import (
    MAX_PEERS,
    SERVICE,
    Advert,
    Found,
    instance_name,
    node_of,
    parse,
    properties,
)
from potluck.net.askings import Askings
from potluck.net.interfaces import (
    Interface,
    Interfaces,
    announced,
    dialling_order,
    is_avoided,
    networks,
    own_interfaces,
)
from potluck.net.listing import MAX_ASKED, Entry, Listing
from potluck.net.nobody import NOBODY_S, nobody_found
from potluck.tasks import TaskSet, every
from potluck.wire.certificates import node_label
from potluck.wire.messages import Address

logger = logging.getLogger(__name__)

RECORD_TTL_S = 60  # the longest time that a crashed node stays in the list
REFRESH_INTERVAL_S = 3.0  # the longest delay until a changed network interface is noticed
PROBE_INTERVAL_S = 10.0
# A record replaces another of its name only if the older one was received at least a second before
# (RFC 6762, 10.2), and zeroconf repeats each record for half a second. With a shorter interval,
# some computers would keep the old record for an hour.
ANNOUNCE_INTERVAL_S = 1.7
RESOLVE_TIMEOUT_S = 3.0

# zeroconf's annotations do not say that the result is the task that repeats the announcement.
_Announce: TypeAlias = Callable[..., Coroutine[Any, Any, asyncio.Task[None]]]


class Discovery:
    """The other nodes of the network that are known now.

    Args:
        on_change: called in the event loop whenever the result of `peers` changes.
        remembered: a JSON file of typed addresses and peers seen before; None: nothing is kept.
        probe: asks which node answers at an address; None: use multicast alone.
        interfaces: returns this computer's interfaces as they are now.
        resolve_timeout_s: how long a node has to answer for its records.
        hint_s: after so long without finding anybody there is a `hint`.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        remembered: Path | None = None,
        probe: Probe | None = None,
        interfaces: Interfaces = own_interfaces,
        resolve_timeout_s: float = RESOLVE_TIMEOUT_S,
        hint_s: float = NOBODY_S,
    ) -> None:
        self._on_change = on_change
        self._interfaces = interfaces
        self._resolve_timeout_s = resolve_timeout_s
        self._hint_s = hint_s
        self._is_due = False  # whether the search has lasted for `hint_s`
        self._own: frozenset[Interface] = frozenset()
        self._book = AddressBook(remembered, probe)
        self._advert: Advert | None = None
        self._published: Advert | None = None
        self._published_at = 0.0  # in the event loop's time
        self._announcing: asyncio.Task[None] | None = None
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._browsing = asyncio.Lock()
        self._hinting: asyncio.Task[None] | None = None
        self._again: set[NodeId] = set()
        self._tasks = TaskSet()
        self._listing = Listing(
            is_paired=self._book.knows, identify=probe, tasks=self._tasks, on_change=on_change
        )
        self._found = self._listing.nodes
        self._resolving = Askings(self._tasks, self._listing.is_known, MAX_ASKED)

    # --- the nodes that are found

    def peers(self) -> list[Found]:
        """The other nodes, each once, sorted by name."""
        assert self._advert is not None
        found = {node_id: entry[0] for node_id, entry in self._found.items()}
        for probed in self._book.found(self._avoids):
            known = found.get(probed.node_id)
            if known is None:
                found[probed.node_id] = probed
            else:
                addresses = dict.fromkeys((*known.addresses, *probed.addresses))
                found[probed.node_id] = replace(known, addresses=tuple(addresses))
        found.pop(self._advert.node_id, None)
        return sorted(found.values(), key=lambda f: (f.name.casefold(), f.node_id))

    def hint(self) -> str | None:
        """What to tell a person while nobody is found; None: somebody is, or it is too early."""
        if not self._is_due or self.peers():
            return None
        asked = [address.host for address in self._book.asked()]
        own = announced(i for i in self._own if not i.is_loopback)
        return nobody_found(own, asked, multicast=self._zeroconf is not None)

    def kept(self) -> dict[str, Kept]:
        """The addresses that were typed or worked before, by the id of the node that was there."""
        return self._book.kept()

    def forget(self, node_id: NodeId) -> None:
        """Remove a node from the list after a connection showed that it is gone.

        The node is asked at once; if it is still there, it returns to the list by itself.
        """
        self._book.lost(node_id)
        if self._found.pop(node_id, None) is None:
            return
        if self._zeroconf is not None:
            cache = self._zeroconf.zeroconf.cache
            name = instance_name(node_id)
            pointer = cache.current_entry_with_name_and_alias(SERVICE, name)
            cache.async_remove_records([*cache.entries_with_name(name), *filter(None, [pointer])])
            self._resolve(node_id)
        self._on_change()

    async def add_address(self, text: str) -> Found:
        """Add `host[:port]` as a person typed it; it is asked at once, and again after every start.

        Raises:
            UsageError: the text is not an address.
            UnreachableError: nobody answers there now, or the address is in a network that is not used; it
                is kept nevertheless.
        """
        found = await self._book.add(text, self._avoids)
        self._on_change()
        return found

    def remember(self, node_id: NodeId, name: str, addresses: tuple[Address, ...]) -> None:
        """Keep the addresses of a paired node, in case multicast does not find it."""
        self._book.remember(node_id, name, addresses)

    def meet(self, node_id: NodeId, name: str, address: Address) -> None:
        """Note that a node was paired at this address: it counts as found without multicast."""
        self._book.meet(node_id, name, address)
        self._on_change()

    def drop(self, node_id: NodeId) -> None:
        """Forget the addresses of a node."""
        self._book.drop(node_id)

    # --- start and stop

    async def start(self, advert: Advert) -> None:
        """Announce this node and look for others, until `stop`.

        If multicast does not work, only addresses are used; the log says why.
        """
        self._advert = self._published = advert
        self._published_at = asyncio.get_running_loop().time()
        self._book.own = advert.node_id
        self._own = self._interfaces()
        await self._open()
        self._tasks.spawn(every(REFRESH_INTERVAL_S, self.refresh, what="looking for networks"))
        self._tasks.spawn(every(PROBE_INTERVAL_S, self.probe, what="asking known addresses"))
        self._hinting = self._tasks.spawn(self._give_hint())

    async def search_again(self) -> None:
        """Look for nodes as at the start: announce this one, and ask the network and all known addresses.

        A hint is given only after this search, too, has lasted for `hint_s`.
        """
        assert self._hinting is not None
        self._hinting.cancel()
        self._is_due = False
        self._hinting = self._tasks.spawn(self._give_hint())
        self._on_change()
        await self.refresh()
        if self._zeroconf is not None:
            await self._publish()
            await self._browse(self._zeroconf)
        await self.probe()

    async def _give_hint(self) -> None:
        await asyncio.sleep(self._hint_s)
        self._is_due = True
        self._on_change()

    async def announce(self, advert: Advert) -> None:
        """Announce a changed advert soon; an unchanged one is not sent."""
        self._advert = advert
        if self._announcing is None or self._announcing.done():
            self._announcing = self._tasks.spawn(self._announce_changes())

    async def _announce_changes(self) -> None:
        """Send the newest advert as soon as the previous one is old enough to be replaced."""
        loop = asyncio.get_running_loop()
        while self._published != self._advert:
            await asyncio.sleep(max(0.0, self._published_at + ANNOUNCE_INTERVAL_S - loop.time()))
            await self._publish()

    async def stop(self) -> None:
        """Say goodbye and close."""
        await self._tasks.stop()
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_close()
        self._browser = self._zeroconf = None

    async def refresh(self) -> None:
        """Notice changed interfaces and nodes whose records expired. Called every few seconds."""
        own = self._interfaces()
        if self._zeroconf is None:
            self._own = own
            await self._open()
        elif own != self._own:
            logger.info("network interfaces changed addresses=%s", ", ".join(announced(own)))
            self._own = own
            await self._zeroconf.async_update_interfaces(networks(own), _ip_version(own))
            await self._publish()
            await self._browse(self._zeroconf)  # zeroconf asks for computers only at first
            self._reorder()
        if self._zeroconf is not None:
            for node_id in list(self._found):
                info = AsyncServiceInfo(SERVICE, instance_name(node_id))
                if not info.load_from_cache(self._zeroconf.zeroconf):
                    self._resolve(node_id)

    async def probe(self) -> None:
        """Ask typed and remembered addresses which node is there, unless multicast has found it."""
        if await self._book.probe(frozenset(self._found), self._avoids):
            self._on_change()

    def _avoids(self, host: str) -> bool:
        return is_avoided(host, self._own)

    # --- multicast

    async def _open(self) -> None:
        try:
            self._zeroconf = AsyncZeroconf(
                interfaces=networks(self._own), ip_version=_ip_version(self._own)
            )
            # With this flag zeroconf does not check first whether the name is free. The name
            # contains the node id, and a node that crashed and starts again uses the same name.
            register = cast("_Announce", self._zeroconf.async_register_service)
            self._tasks.add(await register(self._service_info(), cooperating_responders=True))
        except (OSError, ZeroconfError, RuntimeError) as error:
            logger.warning("multicast does not work, connect computers by address: %s", error)
            if self._zeroconf is not None:
                await self._zeroconf.async_close()
            self._zeroconf = None
            return
        await self._browse(self._zeroconf)

    async def _browse(self, zeroconf: AsyncZeroconf) -> None:
        """Ask the network for computers, and listen for those that come later."""
        async with self._browsing:  # else two callers would leave a browser behind
            if self._browser is not None:
                await self._browser.async_cancel()
            self._browser = AsyncServiceBrowser(
                zeroconf.zeroconf,
                SERVICE,
                handlers=[self._changed],
                # A unicast answer would reach only one of the nodes that share the port.
                question_type=DNSQuestionType.QM,
            )

    async def _publish(self) -> None:
        self._published, self._published_at = self._advert, asyncio.get_running_loop().time()
        if self._zeroconf is not None:
            update = cast("_Announce", self._zeroconf.async_update_service)
            self._tasks.add(await update(self._service_info()))

    def _service_info(self) -> AsyncServiceInfo:
        assert self._advert is not None
        return AsyncServiceInfo(
            SERVICE,
            instance_name(self._advert.node_id),
            port=self._advert.port,
            properties=properties(self._advert),
            server=f"{node_label(self._advert.node_id)}.local.",
            parsed_addresses=list(announced(self._own)),
            host_ttl=RECORD_TTL_S,
        )

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        node_id = node_of(name)
        if node_id is None or self._advert is None or node_id == self._advert.node_id:
            return
        if state_change is ServiceStateChange.Removed:
            logger.debug("node left node=%s", short(node_id))
            if self._found.pop(node_id, None) is not None:
                self._on_change()
        elif len(self._found) < MAX_PEERS or self._listing.is_known(node_id):
            self._resolve(node_id)

    def _resolve(self, node_id: NodeId) -> None:
        """Take the node's records as they were announced, or ask for them.

        It asks again if they change meanwhile.
        """
        if node_id in self._resolving:
            self._again.add(node_id)
            return
        assert self._zeroconf is not None
        info = AsyncServiceInfo(SERVICE, instance_name(node_id))
        if info.load_from_cache(self._zeroconf.zeroconf):
            self._note(node_id, info)
            return
        self._resolving.begin(node_id, self._ask)

    async def _ask(self, node_id: NodeId) -> None:
        asked = True
        while asked:
            self._again.discard(node_id)
            await self._ask_once(node_id)
            asked = node_id in self._again

    async def _ask_once(self, node_id: NodeId) -> None:
        assert self._zeroconf is not None
        info = AsyncServiceInfo(SERVICE, instance_name(node_id))
        answered = await info.async_request(
            self._zeroconf.zeroconf,
            self._resolve_timeout_s * 1000,
            question_type=DNSQuestionType.QM,
        )
        self._note(node_id, info if answered else None)

    def _note(self, node_id: NodeId, info: AsyncServiceInfo | None) -> None:
        """Note the records of a node; None: it has none any more."""
        self._listing.note(node_id, self._entry(node_id, info) if info is not None else None)

    def _entry(self, node_id: NodeId, info: AsyncServiceInfo) -> Entry | None:
        port = info.port or 0
        hosts = tuple(info.parsed_scoped_addresses(IPVersion.All))
        if not 0 < port < 65536:
            return None
        found = parse(node_id, info.properties, self._addresses(hosts, port))
        return None if found is None else (found, hosts, port)

    def _addresses(self, hosts: tuple[str, ...], port: int) -> tuple[Address, ...]:
        return tuple(Address(host=h, port=port) for h in dialling_order(hosts, self._own))

    def _reorder(self) -> None:
        """Sort the addresses of all nodes again, since this computer's interfaces changed."""
        for node_id, (found, hosts, port) in self._found.items():
            addresses = self._addresses(hosts, port) or found.addresses
            self._found[node_id] = (replace(found, addresses=addresses), hosts, port)
        self._on_change()


def _ip_version(own: frozenset[Interface]) -> IPVersion:
    has_v6 = any(isinstance(network, int) for network in networks(own))
    return IPVersion.All if has_v6 else IPVersion.V4Only
