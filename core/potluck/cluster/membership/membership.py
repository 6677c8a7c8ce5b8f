"""The computers of this node's own home, and the control connections with them.

The master dials every computer that is paired and found, and dials again when the connection ends.
A member is known by its node id, whatever its addresses are.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from potluck.cluster.device_names import place_name
from potluck.cluster.events import (
    ComputerLeaves,
    ComputerLost,
    ComputerPaired,
    Events,
    Holds,
    StageLost,
    StepRefused,
)
from potluck.cluster.loss import process_lost
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.records import (
    MemberRecord,
    admitted,
    read_records,
    write_records,
)
from potluck.cluster.membership.remote import RemoteComputer, known_medium
from potluck.errors import PeerLostError, PotluckError, UnreachableError, UntrustedPeerError
from potluck.ids import HomeId, NodeId, short
from potluck.net.advert import Found
from potluck.net.control_link import serve_control
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import dial
from potluck.store.throttle import Throttle
from potluck.tasks import TaskSet
from potluck.wire.handover_messages import Known
from potluck.wire.messages import (
    Address,
    Message,
    NodeInfo,
    Revoked,
    Status,
    StepFailed,
    Unloaded,
    WarmingUp,
)

logger = logging.getLogger(__name__)

STEADY_S = 10.0  # after a connection that lasted so long, attempts are counted from the first again
DISCOVERY_S = 4.0  # by then mDNS has found all computers that are on
_REVOKED_TIMEOUT_S = 2.0


class Members:
    """Keeps the computers of this node's own home connected."""

    def __init__(
        self,
        *,
        identity: Identity,
        discovery: Discovery,
        local: LocalComputer,
        me: Callable[[], NodeInfo],
        record_file: Path,
        events: Events,
        retry_s: Sequence[float] = (0.5, 1.0, 2.0, 5.0),
        throttle: Throttle | None = None,
    ) -> None:
        """Make a membership that connects when `look` is called.

        Args:
            identity: of this node.
            discovery: finds the other computers.
            local: this computer, for those who ask for `Members.local`.
            me: describes this node to peers.
            record_file: where the paired computers are stored.
            events: receives what the other computers report, and their loss.
            retry_s: seconds between attempts to connect; the last value is repeated.
            throttle: limits how fast weights are sent; None: there is no limit.
        """
        self.local = local
        self.changed = asyncio.Condition()
        self._identity = identity
        self._discovery = discovery
        self._me = me
        self._record_file = record_file
        self._events = events
        self._retry_s = retry_s
        self._throttle = throttle
        self._records = read_records(record_file)
        self._expected: dict[NodeId, Known] = {}
        self._connected: dict[NodeId, RemoteComputer] = {}
        self._problems: dict[NodeId, PotluckError] = {}
        self._dialling: dict[NodeId, asyncio.Task[None]] = {}
        self._tasks = TaskSet()
        self._started = asyncio.get_running_loop().time()

    # --- the members

    @property
    def home_id(self) -> HomeId | None:
        """Id of this node's own home; None: it has none yet."""
        home = self._identity.own_home
        return home.home_id if home is not None else None

    @property
    def records(self) -> Mapping[NodeId, MemberRecord]:
        """Every paired computer, connected or not."""
        return self._records

    def absent(self) -> Mapping[NodeId, str]:
        """The names of the paired computers that are not connected."""
        return {n: r.shown for n, r in self._records.items() if n not in self._connected}

    def names(self) -> Mapping[NodeId, str]:
        """The names of all paired computers."""
        return {node_id: record.shown for node_id, record in self._records.items()}

    def connected(self) -> Sequence[RemoteComputer]:
        return list(self._connected.values())

    def available(self) -> Sequence[RemoteComputer]:
        """The connected computers that lend themselves to this home."""
        return [c for c in self._connected.values() if c.withheld is None]

    def leaving(self) -> Sequence[RemoteComputer]:
        return [c for c in self._connected.values() if c.is_leaving or c.set_aside]

    def withheld(self) -> Mapping[str, str]:
        reasons = {c.name: c.withheld for c in self._connected.values()}
        return {name: why for name, why in reasons.items() if why is not None}

    def expected(self) -> int:
        """How many paired computers may still connect.

        These are the computers that are found and not connected yet. Shortly after the start, they
        are all that are not connected yet.
        """
        missing = self._records.keys() - self._connected.keys() - self._problems.keys()
        if asyncio.get_running_loop().time() - self._started < DISCOVERY_S:
            return len(missing)
        return len(missing & {f.node_id for f in self._discovery.peers()})

    def problem(self, node_id: NodeId) -> PotluckError | None:
        """The error that keeps a found, paired computer from connecting; None: there is none."""
        return self._problems.get(node_id)

    # --- members are added and removed

    def admit(self, paired: ComputerPaired) -> None:
        """Store a computer that was just paired, with its address, and connect to it."""
        node_id, name = paired.node_id, paired.name
        known = self._expected.pop(node_id, None)
        self._records[node_id] = admitted(node_id, name, self._records, known)
        self._save()
        self._tell_all_revoked()
        self._discovery.meet(node_id, name, paired.address)
        self.look()

    def expect(self, node_id: NodeId, known: Known) -> None:
        """Note what the home before knew of a computer that is about to be paired."""
        self._expected[node_id] = known

    def change(
        self, node_id: NodeId, *, alias: str | None, paused: bool | None, memory: int | None
    ) -> bool:
        """Change what this home does with a computer; None changes nothing. False: it is unknown."""
        if (record := self._records.get(node_id)) is None:
            return False
        self._records[node_id] = msgspec.structs.replace(
            record,
            alias=record.alias if alias is None else alias,
            paused=record.paused if paused is None else paused,
            memory=record.memory if memory is None else memory or None,
        )
        self._save()
        if (computer := self._connected.get(node_id)) is not None:
            self._apply(computer)
            self._events.publish(ComputerLeaves(node_id=node_id))  # the plan is weighed again
        self._notify()
        return True

    def _apply(self, computer: RemoteComputer) -> None:
        """Have a connected computer be as its record says."""
        record = self._records[computer.node_id]
        computer.name = record.alias or computer.link.peer.name
        computer.set_aside, computer.limit = record.paused, record.memory

    async def forget(self, node_id: NodeId) -> bool:
        """Revoke a computer at once, and tell it and the others. False: it is unknown."""
        if self._records.pop(node_id, None) is None:
            return False
        self._save()
        self._discovery.drop(node_id)
        if (task := self._dialling.pop(node_id, None)) is not None:
            task.cancel()
        computer = self._connected.get(node_id)
        home = self._identity.own_home
        if computer is not None and home is not None:
            with suppress(PotluckError, TimeoutError):
                async with asyncio.timeout(_REVOKED_TIMEOUT_S):
                    message = Revoked(node_ids=tuple(sorted({*home.revoked, node_id})))
                    await computer.link.send(message)
                    computer.link.close("removed")
                    await computer.link.wait_closed()
        self._identity.revoke(node_id)
        self._tell_all_revoked()
        self._notify()
        return True

    def _tell_all_revoked(self) -> None:
        for computer in self._connected.values():
            self._tasks.spawn(self._tell_revoked(computer.link))

    async def _tell_revoked(self, link: Link) -> None:
        """Send all revoked ids. An empty list is sent too: a revocation may have been lifted."""
        if (home := self._identity.own_home) is not None:
            with suppress(PotluckError):
                await link.send(Revoked(node_ids=tuple(sorted(home.revoked))))

    # --- connecting

    def look(self) -> None:
        """Dial each member that is found and not connected. Call it when discovery has changed.

        The connections of a member stay when its addresses change, and new ones use the new addresses.
        """
        for found in self._discovery.peers():
            node_id = found.node_id
            if (computer := self._connected.get(node_id)) is not None:
                computer.addresses = _dialled_first(computer.link.remote, found.addresses)
            if node_id in self._records and node_id not in self._dialling:
                task = self._tasks.spawn(self._keep_connected(node_id), name="member")
                self._dialling[node_id] = task
                task.add_done_callback(lambda task, n=node_id: self._dialled(n, task))
        self._notify()

    def called(self, link: Link) -> None:
        """Note where a computer is that dialled this one: a lost one calls from its new address."""
        node_id, port = NodeId(link.peer.node_id), link.peer.port
        is_lost = node_id in self._records and node_id not in self._connected
        if link.home == self.home_id and is_lost and port:
            if (task := self._dialling.pop(node_id, None)) is not None:
                task.cancel()  # it still tries the address before
            address = Address(host=link.remote.host, port=port)
            self._discovery.meet(node_id, link.peer.name, address)
            self.look()

    def _dialled(self, node_id: NodeId, task: asyncio.Task[None]) -> None:
        if self._dialling.get(node_id) is task:
            del self._dialling[node_id]

    def _found(self, node_id: NodeId) -> Found | None:
        return next((f for f in self._discovery.peers() if f.node_id == node_id), None)

    async def _keep_connected(self, node_id: NodeId) -> None:
        """Connect and serve, again and again, as long as the computer is found."""
        attempt, now = 0, asyncio.get_running_loop().time
        while node_id in self._records and (found := self._found(node_id)) is not None:
            began = now()
            try:
                await self._serve(await self._dial(found), found)
            except PotluckError as error:
                logger.info("cannot connect node=%s: %s", short(node_id), error)
                self._problems[node_id] = error
                if isinstance(error, UnreachableError):
                    self._discovery.forget(node_id)
                self._notify()
            except OSError:  # an error of this computer, such as a full disk
                logger.exception("cannot hold a connection node=%s", short(node_id))
            attempt = 0 if now() - began > STEADY_S else attempt + 1
            await asyncio.sleep(self._retry_s[min(attempt, len(self._retry_s) - 1)])
        self._problems.pop(node_id, None)

    async def _dial(self, found: Found) -> Link:
        home = self._identity.own_home
        if home is None:
            raise UntrustedPeerError("This computer has no home yet.")
        return await dial(
            found.addresses,
            self._identity,
            home=home.home_id,
            peer=found.node_id,
            purpose="control",
            me=self._me(),
        )

    async def _serve(self, link: Link, found: Found) -> None:
        """Hold one control connection until it ends."""
        computer = RemoteComputer(
            link,
            identity=self._identity,
            me=self._me,
            addresses=_dialled_first(link.remote, found.addresses),
            throttle=self._throttle,
        )
        self._connected[computer.node_id] = computer
        self._problems.pop(computer.node_id, None)
        logger.info("connected node=%s name=%s", short(computer.node_id), computer.name)
        self._notify()
        try:
            self._remember_name(computer)
            self._apply(computer)
            self._discovery.remember(computer.node_id, computer.name, computer.addresses)
            await self._tell_revoked(link)
            await serve_control(link, lambda message: self._handle(computer, message))
        except PeerLostError as error:
            logger.info("disconnected node=%s: %s", short(computer.node_id), error)
            self._problems[computer.node_id] = error
        finally:
            link.close()
            if self._connected.get(computer.node_id) is computer:
                del self._connected[computer.node_id]
            self._lost(computer, "stopped answering")
            self._notify()

    async def _handle(self, computer: RemoteComputer, message: Message) -> Message | None:
        match message:
            case Status():
                computer.offered = message.devices
                is_lost = message.paused and not computer.is_paused
                leaves = message.leaving and not computer.is_leaving
                computer.is_paused, computer.is_leaving = message.paused, message.leaving
                computer.reason, computer.lent_to = message.reason, message.lent_to
                computer.vitals, computer.medium = message.vitals, known_medium(message.medium)
                if leaves:
                    self._events.publish(ComputerLeaves(node_id=computer.node_id))
                if is_lost:
                    how = computer.pause or "does not lend itself any more"
                    self._lost(computer, how, is_connected=True)
                if message.held != computer.held:
                    computer.held = message.held
                    epochs = [s.epoch for s in message.held if s.epoch is not None]
                    epoch = max(epochs, default=None)
                    self._events.publish(Holds(node_id=computer.node_id, epoch=epoch))
                self._notify()
            case WarmingUp():
                computer.warming_up(message)
            case StepFailed():
                self._events.publish(StepRefused(failure=message, node_id=computer.node_id))
            case Unloaded():  # not asked for: the computer lost its layers
                place = computer.name
                if message.device is not None:
                    place = place_name(place, message.device, computer.devices)
                lost = StageLost(
                    node_id=computer.node_id,
                    place=place,
                    how=(how := process_lost(is_hung=message.is_hung)),
                    epoch=message.epoch,
                    notice=f"{place} {how}. Potluck goes on without it.",
                )
                self._events.publish(lost)
            case _:
                logger.debug("member says op=%s", type(message).__name__)
        return None

    def _lost(self, computer: RemoteComputer, how: str, *, is_connected: bool = False) -> None:
        lost = ComputerLost(
            node_id=computer.node_id, name=computer.name, how=how, is_connected=is_connected
        )
        self._events.publish(lost)

    def _remember_name(self, computer: RemoteComputer) -> None:
        record = self._records[computer.node_id]
        if record.name != (name := computer.link.peer.name):
            self._records[computer.node_id] = msgspec.structs.replace(record, name=name)
            self._save()

    # --- internals
    def _notify(self) -> None:
        self._events.changed()
        self._tasks.spawn(self._wake())

    async def _wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def stop(self) -> None:
        """Close all connections, telling each computer why."""
        for computer in self.connected():
            computer.link.close("The main computer was closed.")
        await self._tasks.stop()

    def _save(self) -> None:
        write_records(self._record_file, self._records.values())


def _dialled_first(dialled: Address, addresses: Sequence[Address]) -> tuple[Address, ...]:
    """The addresses of a computer. Other computers may need others than the one that answered."""
    return tuple(dict.fromkeys((dialled, *addresses)))
