"""A lease: the stages of one plan that a worker computes for a home, at most one on each device."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from potluck.api.values.schema import Held
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.worker.contents import Content
from potluck.ids import Digest, HomeId, NodeId, Role
from potluck.store.chunks import Missing
from potluck.store.progress import TransferProgress
from potluck.wire.messages import Assign, DeviceId, Message, NodeInfo


class MasterLink(Protocol):
    """What a worker needs of a control connection."""

    @property
    def peer(self) -> NodeInfo: ...
    @property
    def peer_role(self) -> Role: ...
    @property
    def home(self) -> HomeId: ...
    @property
    def version(self) -> int:
        """Of the protocol that is spoken on it."""
        ...

    async def send(self, message: Message) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class LeasedStage:
    """The stage of one device."""

    handle: StageHandle
    assign: Assign
    tensors: Mapping[Digest, Content]
    files: Collection[Digest] = ()  # of the store, with these tensors: they are not deleted
    missing: Sequence[Missing]  # still to be sent; a tensor that two stages need is listed once
    progress: float | None = None  # of loading
    is_loaded: bool = False
    layer_count: int = 0  # of the whole model


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """The stages of a plan, and the master that made the plan.

    `before` has the devices with layers of the previous plan in memory. A device that gets a stage
    of this plan keeps the layers that the stage needs. The others free theirs when this plan is
    loaded.
    """

    home: HomeId
    master: NodeId
    master_name: str
    epoch: int
    link: MasterLink | None
    stages: dict[DeviceId, LeasedStage] = field(default_factory=dict)
    before: dict[DeviceId, StageHandle] = field(default_factory=dict)
    transfer: TransferProgress | None = None  # of the weights
    release: asyncio.TimerHandle | None = None

    @property
    def handles(self) -> dict[DeviceId, StageHandle]:
        """The stage process of every device that may have layers in memory."""
        return self.before | {device: stage.handle for device, stage in self.stages.items()}

    @property
    def is_loaded(self) -> bool:
        return all(stage.is_loaded for stage in self.stages.values())

    @property
    def awaits_weights(self) -> bool:
        return any(stage.missing and not stage.is_loaded for stage in self.stages.values())

    @property
    def progress(self) -> float:
        """Progress of loading over all stages, from 0 to 1."""
        return fmean(
            1.0 if stage.is_loaded else stage.progress or 0.0 for stage in self.stages.values()
        )

    @property
    def layers(self) -> tuple[int, int] | None:
        """The first layer of all stages, and the one after the last. None: it reads pictures."""
        if self._is_tower:
            return None
        starts, stops = zip(*(stage.assign.layers for stage in self.stages.values()), strict=True)
        return min(starts), max(stops)

    @property
    def _is_tower(self) -> bool:
        assigned = [stage.assign for stage in self.stages.values()]
        return all(a.tower and a.layers == (0, 0) for a in assigned)

    @property
    def model(self) -> tuple[str, int]:
        """The name of the model ("": its master does not say), and how many layers it has."""
        stage = next(iter(self.stages.values()))
        return stage.assign.model, stage.layer_count

    @property
    def held(self) -> tuple[int, Held]:
        """How many layers its stages compute, each counted once, and what these are of the model."""
        whole, ranks, sizes = set[int](), defaultdict[int, set[int]](set), dict[int, int]()
        for stage in self.stages.values():
            layers, share = range(*stage.assign.layers), stage.assign.share
            if share is None:
                whole.update(layers)
                continue
            for layer in layers:
                ranks[layer].add(share.rank)
                sizes[layer] = len(share.shares)
        whole.update(layer for layer, here in ranks.items() if len(here) == sizes[layer])
        if self._is_tower:
            return 0, "tower"
        held = whole | ranks.keys()
        if held != whole:
            return len(held), "shares"
        assigned = [stage.assign for stage in self.stages.values()]
        has_ends = any(a.embedding for a in assigned) and any(a.head for a in assigned)
        is_all = has_ends and len(held) == self.model[1]
        return len(held), "model" if is_all else "layers"

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of all stages."""
        return sum(t.nbytes for stage in self.stages.values() for t in stage.tensors.values())

    def awaited(self, *, besides: DeviceId | None = None) -> dict[Digest, int]:
        """Sizes of the tensors still to be sent, by digest, except those for device `besides`."""
        return {
            tensor.digest: tensor.nbytes
            for device, stage in self.stages.items()
            if device != besides
            for tensor in stage.missing
        }
