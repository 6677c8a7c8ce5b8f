"""The connections that other computers of a home make to this one: control, weights, measuring."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from potluck.api.values import network
from potluck.api.values import vitals as schema
from potluck.cluster.worker.worker import Worker
from potluck.errors import (
    NotAllowedError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    RemoteError,
    UnreachableError,
    UntrustedPeerError,
)
from potluck.ids import HomeId, NodeId, short
from potluck.net.control_link import serve_control
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.measure import measure_to
from potluck.net.transport import dial
from potluck.tasks import TaskSet
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.handover_messages import Follow, Invite, TakeOver
from potluck.wire.measuring_messages import LinkMeasured, MeasureLink, MeasureSums
from potluck.wire.messages import (
    Address,
    DeviceInfo,
    Hop,
    Load,
    Medium,
    Message,
    NodeInfo,
    PlanBefore,
    RankPlace,
    Revoked,
    Status,
    StillNeeded,
    Vitals,
)
from potluck.wire.passing_messages import PassedOn, PassOn

logger = logging.getLogger(__name__)

HopKind = TypeVar("HopKind", bound=Hop)

# What dialling another computer raises, and what a handshake there found.
_NOT_REACHED = (UnreachableError, UntrustedPeerError, PeerLostError, PeerTimeoutError, RemoteError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """How long a worker waits on its connections, in seconds."""

    dial_s: float = 8.0  # for dialling another computer to measure the link to it
    measure_s: float = 12.0  # for a measurement; with dialling less than the asking master waits
    idle_s: float = 30.0  # on a weights link that receives nothing; measuring takes less
    status_s: float = 0.5  # between two status messages


class WorkerLinks:
    """Serves the connections of masters, and reports to them what this computer lends.

    Args:
        removed: called when a home's master has removed this computer.
        changed: called when the displayed state has changed; the receiver must call `announce`.
        handed_over: answers a master that hands its home over.
        needed: called with the name of a master whose model does not fit without this computer,
            which leaves.
        medium_to: what the way to a host goes over, at this computer's end.
        avoids: whether nobody is to be dialled at a host, since its network is not used.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        identity: Identity,
        me: Callable[[], NodeInfo],
        devices: Callable[[], tuple[DeviceInfo, ...]],
        removed: Callable[[HomeId], None],
        changed: Callable[[], None],
        handed_over: Callable[[Link, Message], Awaitable[Message]],
        needed: Callable[[str], None] = lambda _: None,
        avoids: Callable[[str], bool] = lambda _: False,
        medium_to: Callable[[str], network.Medium] = lambda _: network.Medium(),
        times: LinkTimes | None = None,
    ) -> None:
        self._worker = worker
        self._identity = identity
        self._me = me
        self._devices = devices
        self._removed = removed
        self._changed = changed
        self._handed_over = handed_over
        self._needed_by = needed
        self._avoids = avoids
        self._medium_to = medium_to
        self._times = times if times is not None else LinkTimes()
        self._masters: dict[Link, Status | None] = {}  # the status that each was sent last
        self._status_due: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()

    def masters(self) -> tuple[Link, ...]:
        """The control connections of masters."""
        return tuple(self._masters)

    def master_names(self) -> tuple[str, ...]:
        """Names of the masters that this computer helps: connected ones and that of the lease."""
        lease = self._worker.lease
        names = [link.peer.name for link in self._masters]
        return tuple(dict.fromkeys([*names, *([lease.master_name] if lease is not None else [])]))

    async def serve(self, link: Link) -> None:
        """Serve one connection until it ends."""
        try:
            match link.purpose:
                case "control":
                    await self._serve_control(link)
                case "weights":
                    await self._serve_weights(link)
                case "activations" | "ranks":
                    raise NotAllowedError("Activations go to a stage's own port.")
        except PeerLostError as error:
            logger.debug("%s link ended peer=%s: %s", link.purpose, link.peer.name, error)
        except PotluckError as error:
            logger.info("%s link failed peer=%s: %s", link.purpose, link.peer.name, error)

    async def _serve_control(self, link: Link) -> None:
        if link.peer_role != "master":
            raise NotAllowedError("Only a home's main computer controls others.")
        self._masters[link] = None
        self._worker.leasing.came(link)
        self._changed()
        try:
            await serve_control(link, lambda message: self._handle(link, message))
        finally:
            del self._masters[link]
            self._worker.leasing.left(link)
            self._changed()

    async def _handle(self, link: Link, message: Message) -> Message | None:
        match message:
            case Revoked():
                self._revoked(link, message)
                return None
            case MeasureLink():
                return await self._measure(link, message)
            case Load() if hops := message.dialled:
                return await self._dialling(link, message, hops)
            case TakeSessions(before=PlanBefore(hops=hops)) if hops:
                return await self._dialling(link, message, hops)
            case MeasureSums(ranks=RankPlace() as ranks) if hops := ranks.above:
                return await self._dialling(link, message, hops)
            case PassOn():
                return await self._pass_on(link, message)
            case StillNeeded():
                self._needed(link)
                return None
            case TakeOver() | Invite() | Follow():
                return await self._handed_over(link, message)
            case Status():
                return None
            case _:
                return await self._worker.handle(link, message)

    def _needed(self, link: Link) -> None:
        if self._worker.is_leaving:
            self._needed_by(link.peer.name)

    def _revoked(self, link: Link, message: Revoked) -> None:
        if self._identity.node_id in message.node_ids:
            self._removed(link.home)
            return
        self._identity.set_revoked(link.home, map(NodeId, message.node_ids))

    async def _measure(self, link: Link, message: MeasureLink) -> LinkMeasured:
        """Measure the link to another member."""
        if link.peer_role != "master" or not self._worker.is_lending:
            raise NotAllowedError("This computer measures for a master that it lends itself to.")
        try:
            return await measure_to(
                self.check_addresses(link, message.node_id, message.addresses),
                self._identity,
                home=link.home,
                peer=NodeId(message.node_id),
                me=self._me(),
                dial_s=self._times.dial_s,
                measure_s=self._times.measure_s,
            )
        except PotluckError as error:
            raise _no_way(message.node_id, error) from None

    async def _dialling(
        self, link: Link, message: Load | MeasureSums | TakeSessions, hops: Sequence[Hop]
    ) -> Message | None:
        """Do what has a stage process dial others: the next one, other ranks, or who answers with what it reads."""
        try:
            for hop in hops:
                self.check_addresses(link, hop.node_id, hop.addresses)
            return await self._worker.handle(link, _dialling_less(message, self._avoids))
        except _NOT_REACHED as error:
            raise _no_way(hops[0].node_id, error) from None

    def check_addresses(
        self, link: Link, node_id: str, addresses: Sequence[Address]
    ) -> tuple[Address, ...]:
        """Check where a master has this computer dial another one, and return where it may be dialled.

        A master may have its workers dial each other, but it must not scan their networks in this
        way: no resolver is asked, and this computer's own services are not dialled. Whatever goes
        wrong gives the same sentence, by `_no_way`. What is in a network that is not used is left out.

        Raises:
            UnreachableError: one of them is a name; or loopback, neither this node nor its master
                being there.
        """
        is_local = node_id == self._identity.node_id or _is_loopback(link.remote)
        for address in addresses:
            if _is_loopback(address) and not is_local:
                raise UnreachableError("A master dials nothing but nodes on this computer.")
        return tuple(address for address in addresses if not self._avoids(address.host))

    async def _pass_on(self, link: Link, message: PassOn) -> PassedOn:
        """Send tensors to another worker of the home, as its master says."""
        if link.peer_role != "master" or not self._worker.is_lending:
            raise NotAllowedError(
                "This computer sends weights for a master that it lends itself to."
            )
        sources = self._worker.peers.sources(link.home, message.tensors)
        here = [tensor for tensor in message.tensors if tensor.digest in sources]
        try:
            other = await dial(
                self.check_addresses(link, message.node_id, message.addresses),
                self._identity,
                home=link.home,
                peer=NodeId(message.node_id),
                purpose="weights",
                me=self._me(),
                timeout_s=self._times.dial_s,
            )
        except PotluckError as error:
            raise _no_way(message.node_id, error) from None
        try:
            return PassedOn(nbytes=await self._worker.peers.pass_on(other, here, sources))
        finally:
            other.close()

    async def _serve_weights(self, link: Link) -> None:
        lease = self._worker.lease
        is_lender = lease is not None and lease.home == link.home and lease.awaits_weights
        if link.peer_role == "master" and is_lender:
            await self._worker.receive_weights(link.home, link)
        elif is_lender:
            with self._worker.peers.until_assigned() as deadline:
                async with deadline:
                    source = NodeId(link.peer.node_id)
                    await self._worker.receive_weights(link.home, link, source)
        elif link.peer_role == "master" and self._worker.spares.awaits(link.home):
            await self._worker.spares.receive(link.home, link)
        async with asyncio.timeout(self._times.idle_s):
            await link.receive()  # the link answers measurements by itself until it ends

    # --- status

    def announce(self) -> None:
        """Send each master the status if it has changed, at most once per `status_s`."""
        if self._status_due is None:
            loop = asyncio.get_running_loop()
            self._status_due = loop.call_later(self._times.status_s, self._announce_now)
        for link, told in self._masters.items():
            now = self._worker.is_gone, self._worker.is_leaving, self._worker.reason
            if (
                told is None or (told.paused, told.leaving, told.reason) != now
            ):  # its answers go elsewhere
                self._tell(link)

    def _announce_now(self) -> None:
        self._status_due = None
        for link in self._masters:
            self._tell(link)

    def _tell(self, link: Link) -> None:
        worker, lease = self._worker, self._worker.lease
        is_others = lease is not None and lease.home != link.home and lease.link is not None
        status = Status(
            devices=self._devices(),
            paused=worker.is_gone,
            leaving=worker.is_leaving,
            reason=worker.reason,
            lent_to=lease.master_name if lease is not None and is_others else None,
            held=worker.leasing.held(link.home),
            vitals=_vitals(worker.vitals),
            medium=_medium(self._medium_to(link.remote.host)),
        )
        if status != self._masters[link]:
            self._masters[link] = status
            self._tasks.spawn(self._send(link, status))

    async def _send(self, link: Link, status: Status) -> None:
        with suppress(PotluckError):  # the task that serves the link notices its end
            await link.send(status)


def _vitals(seen: schema.Vitals) -> Vitals | None:
    if seen == schema.Vitals():
        return None  # nothing can be read here
    return msgspec.convert(seen, Vitals, from_attributes=True)


def _medium(seen: network.Medium) -> Medium | None:
    return msgspec.convert(seen, Medium, from_attributes=True) if seen.kind else None


def _dialling_less(
    message: Load | MeasureSums | TakeSessions, avoids: Callable[[str], bool]
) -> Message:
    """The same message, without the addresses in networks that are not used."""

    def used(hop: HopKind) -> HopKind:
        return replace(hop, addresses=tuple(a for a in hop.addresses if not avoids(a.host)))

    def used_before(plan: PlanBefore) -> PlanBefore:
        return replace(plan, hops=tuple(map(used, plan.hops)))

    if isinstance(message, TakeSessions):
        return replace(message, before=used_before(message.before))
    ranks = message.ranks and replace(message.ranks, hops=tuple(map(used, message.ranks.hops)))
    if isinstance(message, MeasureSums):
        return replace(message, ranks=ranks)
    return replace(
        message,
        ranks=ranks,
        next_hop=message.next_hop and used(message.next_hop),
        cache_hops=tuple(map(used, message.cache_hops)),
        before=message.before and used_before(message.before),
    )


def _is_loopback(address: Address) -> bool:
    """Whether only this computer is there. Raises UnreachableError for a name."""
    try:
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    except ValueError as error:
        raise UnreachableError("A master gives addresses, and no names.") from error


def _no_way(node_id: str, error: Exception) -> UnreachableError:
    """The one sentence that a master hears; the log has the reason."""
    logger.info("no way to %s: %s", short(node_id), error)
    return UnreachableError("That computer cannot be reached from here.")
