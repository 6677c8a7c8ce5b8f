"""A plan: the stages of a model, in the order in which a token visits them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, HopCost, ModelShape
from potluck.plan.groups import RankGroup, memory_of
from potluck.plan.route import Route, ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A contiguous range of layers on one device."""

    node: NodeId
    name: str
    device: str
    layers: range
    embedding: bool
    head: bool
    predicted_ms: float  # of one token, with the head if this stage has it
    head_ms: float  # the head's part of `predicted_ms`; 0 if this stage has no head
    prefill_ms: float  # of one whole prefill chunk, without the head
    # How much longer a token takes in these layers for each byte that it reads of the cache of one, for each kind;
    # `DeviceCost` has more of it.
    token_read_ms: tuple[float, ...] = ()
    chunk_read_ms: tuple[float, ...] = ()
    memory: int  # bytes of weights and KV cache
    rank: int = 0  # in its group, whose ranks follow each other and have the same layers
    tower: bool = False  # it has the vision tower without being the first one
    shares: tuple[int, ...] = (1,)  # how much of each layer every rank has; one: there is no group

    @property
    def is_ranked(self) -> bool:
        """Whether it is a rank of a group, and has a share of its layers."""
        return len(self.shares) > 1

    @property
    def part(self) -> float:
        """How much of each layer it has, of 1."""
        return self.shares[self.rank] / sum(self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages in the order in which a token visits them, and their predicted speed."""

    stages: tuple[StagePlan, ...]
    hops: tuple[HopCost, ...]  # master to first, between the stages, last to master
    token_ms: float  # time of one user's next token
    predicted_tokens_per_s: float  # for one user
    users: int  # for how many at once it was made
    users_tokens_per_s: float  # of all of them together
    alone: Mapping[NodeId, float | None]  # tokens per second on one computer; None: does not fit
    lower_bound_ms: float  # no plan for these computers is faster for one token
    optimal: bool  # proven to be the fastest; may be False with layers by hand or many devices
    explanation: str  # lines of text for people

    @property
    def pipeline(self) -> tuple[StagePlan, ...]:
        """The stages that a token visits one after the other: of each group, its rank 0."""
        return tuple(stage for stage in self.stages if stage.rank == 0)


def stages_of(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    groups: Sequence[RankGroup],
    route: Route,
) -> tuple[StagePlan, ...]:
    """The stages of a route; a group has one for each of its ranks. `groups` are the last devices of the route's problem."""
    stages: list[StagePlan] = []
    for k, (i, own) in enumerate(zip(route.devices, ranges(route.counts), strict=True)):
        first, last = k == 0, k == len(route.devices) - 1
        if i < len(devices):
            memory = shape.stage_memory(own, first=first, last=last)
            stages.append(_stage(shape, devices[i], own, memory, first=first, last=last))
            continue
        group = groups[i - len(devices)]
        stage = _stage(shape, group.cost, own, 0, first=first, last=last)
        stages += [
            replace(
                stage,
                node=devices[member].node,
                name=devices[member].name,
                device=devices[member].device,
                head=last and rank == 0,
                memory=memory_of(shape, group, rank, own, first=first, last=last),
                rank=rank,
                shares=group.shares,
            )
            for rank, member in enumerate(group.members)
        ]
    return tuple(stages)


def _stage(
    shape: ModelShape, device: DeviceCost, own: range, memory: int, *, first: bool, last: bool
) -> StagePlan:
    head_ms = device.head_ms if last else 0.0
    kinds = shape.layers[own.start : own.stop]
    return StagePlan(
        node=device.node,
        name=device.name,
        device=device.device,
        layers=own,
        embedding=first,
        head=last,
        predicted_ms=sum(device.decode_ms[kind] for kind in kinds) + head_ms,
        head_ms=head_ms,
        prefill_ms=sum(device.prefill_ms[kind] for kind in kinds),
        token_read_ms=tuple(kinds.count(kind) * ms for kind, ms in enumerate(device.token_read_ms)),
        chunk_read_ms=tuple(kinds.count(kind) * ms for kind, ms in enumerate(device.chunk_read_ms)),
        memory=memory,
    )
