"""What clients see of computers: this one, the paired ones, and those that were found."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias

import msgspec

from potluck.api.values import schema
from potluck.api.values.network import Medium
from potluck.api.values.schema import ComputerState
from potluck.api.values.vitals import Vitals
from potluck.cluster.master.beside import Serving
from potluck.cluster.master.loader import DEPLOYING
from potluck.cluster.master.master import Master
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.pairing import Pairings
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.views import moved_by
from potluck.cluster.worker.lease import Lease
from potluck.cluster.worker.worker import Worker
from potluck.errors import PeerLostError, PotluckError, VersionMismatchError
from potluck.ids import NodeId
from potluck.net.advert import Found
from potluck.net.transport import show
from potluck.wire.messages import Address, DeviceInfo

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Start and stop of ranges of layers, in order; none follows the one before without a gap."""


def device(info: DeviceInfo) -> schema.Device:
    """Convert a device from its form on the wire."""
    return msgspec.convert(info, schema.Device, from_attributes=True)


class ComputerViews:
    """Makes the list of computers: this one, the paired ones, and those that were only found."""

    def __init__(
        self,
        *,
        local: LocalComputer,
        membership: Members,
        master: Master,
        pairings: Pairings,
        slower: Callable[[], Mapping[NodeId, float]],
        medium: Callable[[], Medium] = Medium,
    ) -> None:
        """Make the list when `all` is called.

        Args:
            local: this computer.
            membership: the paired ones.
            master: has the plan and the measurements.
            pairings: that are under way.
            slower: the computers whose devices take so many times as long as was measured.
            medium: by which others reach this computer.
        """
        self._medium = medium
        self._local = local
        self._membership = membership
        self._master = master
        self._pairings = pairings
        self._slower = slower

    def all(self, found: Sequence[Found], worker: Worker) -> tuple[schema.Computer, ...]:
        by_id = {f.node_id: f for f in found}
        connected = {c.node_id: c for c in self._membership.connected()}
        paired = [
            self._paired(node_id, by_id.get(node_id), connected.get(node_id))
            for node_id in self._membership.records
        ]
        strangers = [self._stranger(f) for f in found if f.node_id not in self._membership.records]
        return (self._self(worker), *paired, *strangers)

    def _self(self, worker: Worker) -> schema.Computer:
        local = self._local
        state, progress, layers = self._part(local.node_id)
        if worker.reason is not None:
            state = "paused"
        elif (lease := worker.lease) is not None and not layers:
            layers = ranges_of(() if lease.layers is None else (lease.layers,))
            state, progress = _borrowed(lease)
        return schema.Computer(
            node_id=local.node_id,
            name=local.name,
            address=_shown(local.addresses),
            paired=True,
            online=True,
            is_self=True,
            state=state,
            progress=progress,
            devices=tuple(map(device, local.devices)),
            rtt_ms=0.0,
            medium=self._medium(),
            layers=_whole(layers),
            ranges=layers if len(layers) > 1 else (),
            slower=self._slower().get(local.node_id),
            lacked_memory=local.node_id in self._master.shortages.nodes,
            reads_pictures=self._reads_pictures(local.node_id),
            vitals=worker.vitals,
            memory_lent=self._memory_lent(local.node_id)
            or (worker.lease.nbytes if worker.lease else 0),
        )

    def _paired(
        self, node_id: NodeId, found: Found | None, computer: RemoteComputer | None
    ) -> schema.Computer:
        record = self._membership.records[node_id]
        link = self._master.measurements.links.between(self._local.node_id, node_id)
        state, progress, layers = self._part(node_id)
        detail: str | None = None
        problem = self._membership.problem(node_id)
        if record.paused:
            state, detail = "paused", "It is paused by you."
        elif computer is None:
            state, detail = _absent(found, problem)
        elif computer.is_paused:
            state = "paused"
            detail = f"It {computer.pause or 'does not lend itself just now'}."
        elif computer.lent_to is not None:
            state, detail = "paused", f"It helps {computer.lent_to}."
        rtt_s = computer.link.rtt_s if computer is not None else None
        return schema.Computer(
            node_id=node_id,
            name=computer.name if computer is not None else record.shown,
            address=_shown(computer.addresses if computer else found.addresses if found else ()),
            paired=True,
            online=computer is not None,
            joinable=found.joinable if found is not None else False,
            state=state,
            detail=detail,
            progress=progress,
            devices=tuple(map(device, computer.devices)) if computer is not None else (),
            rtt_ms=1000 * rtt_s if rtt_s is not None else link.rtt_ms if link else None,
            bytes_per_s=link.bytes_per_s if link is not None else None,
            medium=computer.medium if computer is not None else Medium(),
            layers=_whole(layers),
            ranges=layers if len(layers) > 1 else (),
            reconnecting=state == "lost" and found is not None,
            slower=self._slower().get(node_id),
            lacked_memory=node_id in self._master.shortages.nodes,
            reads_pictures=self._reads_pictures(node_id),
            vitals=msgspec.convert(
                computer and computer.vitals, Vitals | None, from_attributes=True
            ),
            memory_lent=self._memory_lent(node_id),
            set_aside=record.paused,
            spare=self._spare(node_id) if computer is not None else None,
            color=record.color,
        )

    def _memory_lent(self, node_id: NodeId) -> int:
        """Bytes of weights and caches of this master's model on a computer."""
        deployment = self._master.deployment
        both: list[Serving] = [*([] if deployment is None else [deployment]), *self._beside()]
        stages = [stage for each in both for stage in each.planned.plan.stages]
        return sum(stage.memory for stage in stages if stage.node == node_id)

    def _reads_pictures(self, node_id: NodeId) -> Literal["no", "soon", "yes"]:
        viewers = self._master.viewers
        stages = () if viewers.deployment is None else viewers.deployment.planned.plan.stages
        if all(stage.node != node_id for stage in stages):
            return "no"
        return "yes" if viewers.is_ready else "soon"

    def _beside(self) -> list[Serving]:
        """What is loaded, or being loaded, beside the deployment in force."""
        both = (self._master.readers.deployment, self._master.viewers.deployment)
        return [*(each for each in both if each is not None), *self._master.replicas.deployments]

    def _spare(self, node_id: NodeId) -> schema.SpareCopy | None:
        copy = self._master.spares.copies.get(node_id)
        return msgspec.convert(copy, schema.SpareCopy, from_attributes=True) if copy else None

    def _stranger(self, found: Found) -> schema.Computer:
        attempt = self._pairings.under_way(found.node_id)
        state: ComputerState = "found"
        if attempt is not None:
            state = "asking" if attempt.machine.code is None else "pairing"
        return schema.Computer(
            node_id=found.node_id,
            name=found.name,
            address=_shown(found.addresses),
            online=True,
            joinable=found.joinable,
            state=state,
        )

    def _part(self, node_id: NodeId) -> tuple[ComputerState, float | None, Ranges]:
        """What a computer does for this master's model: its state, progress and layers."""
        deployment, phase = self._master.deployment, self._master.state.phase
        tasks = deployment.tasks if deployment is not None else ()
        tasks = [task for task in tasks if task.stage.node == node_id]
        beside = (each for each in self._beside() if each.uses(node_id))
        if not tasks and (other := next(beside, None)) is not None:
            tasks = [task for task in other.tasks if task.stage.node == node_id]
            phase = other.phase if other.pipeline is None else "ready"
        if not tasks:
            return "ready", None, ()
        given = [task.assign for task in tasks]
        layers = ranges_of(a.layers for a in given if not a.tower or a.layers != (0, 0))
        moved = moved_by(tasks)
        if phase == "streaming" and moved.sent < moved.total:
            return "receiving", moved.sent / moved.total, layers
        if phase == "quantising":
            return "ready", None, layers
        if phase in DEPLOYING:
            return "loading", fmean(task.progress.loaded for task in tasks), layers
        return "running", None, layers


def ranges_of(layers: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges of layers, of which those are one that follow each other, or are the same.

    An empty one, of the vocabulary alone, is left out beside others.
    """
    ordered = sorted(layers)
    ranges: list[tuple[int, int]] = []
    for start, stop in [each for each in ordered if each[1] > each[0]] or ordered:
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(stop, ranges[-1][1])
        else:
            ranges.append((start, stop))
    return tuple(ranges)


def _whole(ranges: Ranges) -> tuple[int, int] | None:
    """From the first of these layers to the last one."""
    return (ranges[0][0], ranges[-1][1]) if ranges else None


def _borrowed(lease: Lease) -> tuple[ComputerState, float | None]:
    """State and progress of a lease, for the clients of this computer."""
    if lease.is_loaded:
        return "running", None
    if lease.awaits_weights:
        transfer = lease.transfer
        return "receiving", transfer.sent / max(transfer.total, 1) if transfer else 0.0
    return "loading", lease.progress


def _absent(found: Found | None, problem: PotluckError | None) -> tuple[ComputerState, str | None]:
    if found is None:
        return "lost", "It is off, asleep or on another network."
    if problem is None:
        return "lost", "It is found, and being connected."
    state: ComputerState = "blocked"
    if isinstance(problem, VersionMismatchError):
        state = "version_differs"
    elif isinstance(problem, PeerLostError):
        state = "lost"
    return state, problem.message


def _shown(addresses: Sequence[Address]) -> str | None:
    return show(addresses[0]) if addresses else None
