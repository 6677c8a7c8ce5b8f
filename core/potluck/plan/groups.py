"""Rank groups: devices that compute a range of layers together, each a share of every layer.

To the planner a group is one device. In each layer it takes the time of its slowest member for its share, and that
of two sums (Megatron-LM, Shoeybi et al. 2019, section 3): after attention and after the MLP each member sends its
part to all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations
from math import gcd
from typing import Literal, TypeAlias

from potluck.plan.cost import DeviceCost, HopCost, Links, ModelShape, Sums, hop_between
from potluck.plan.route import Problem
from potluck.plan.spans import Span, span_in

SUMS = 2  # of each layer
MOST_MEMBERS = 4  # each sends its part to all others
MOST_GROUPS = 40  # that are compared: all of five devices, and half a second
PARTS = 64  # of a layer; measurements are no finer
LONGER = 1 / 32  # of a rank's time that simple shares may cost
SUM_ITEM = 4  # bytes of a number of a part, f32


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Devices that compute their layers together, and what they are together.

    Attributes:
        members: the devices by their number, in the order of their ranks.
        shares: how much of each layer every member has, relative to the others.
        cost: their times together. Name, node and device are those of rank 0.
        span: the layers that they can hold.
        sums_ms: what the sums of a token take of the time of a layer.
    """

    members: tuple[int, ...]
    shares: tuple[int, ...]
    cost: DeviceCost
    span: Span
    sums_ms: float

    @property
    def parts(self) -> tuple[float, ...]:
        """The share of each member, of 1."""
        return tuple(share / sum(self.shares) for share in self.shares)


Reason: TypeAlias = Literal[
    "tables",  # the model reads from the disk
    "memory",  # a member has no room for its share of any layer
    "sums",  # a layer takes them longer than the slowest member alone
    "prompts",  # so does a chunk of a prompt
    "others",  # more than `MOST_GROUPS` are faster
    "room",  # no route has layers for them
    "slower",  # a token is slower with them
    "gain",  # a token is hardly faster with them
]
"""Why a group is not in a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A group whose sums were measured, and what speaks against it; None: nothing so far.

    `token_ms` is the time of a token with the group, if that is what speaks against it.
    """

    group: RankGroup
    against: Reason | None
    token_ms: float = 0.0


def group_of(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    members: Sequence[int],
    *,
    sums: Sums,
    prefill_tokens: int,
    shares: tuple[int, ...] | None = None,
    tokens: int = 1,
) -> RankGroup:
    """The group of these devices, with shares by their speed.

    Args:
        shape: the sizes of the model.
        devices: all devices.
        links: the measured links.
        members: numbers of the devices, in the order of the ranks.
        sums: the measured ones; others are estimated from the link.
        prefill_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        shares: of the members; None: by their speed.
        tokens: that `DeviceCost.decode_ms` is the time of.
    """
    own = [devices[i] for i in members]
    shares = shares or _by_speed(own)
    parts = [share / sum(shares) for share in shares]
    kinds = range(len(shape.layer_bytes))
    most = [max(shape.share(kind, part) for kind in kinds) for part in parts]
    row = shape.hidden_size * SUM_ITEM
    one, chunk = (sums_ms(links, own, count * row, sums) for count in (tokens, prefill_tokens))

    def together(times: Sequence[Sequence[float]], of_sums: float) -> tuple[float, ...]:
        """The times of all members for a layer of each kind, and of its sums."""
        return tuple(
            of_sums
            + max(shape.share(kind, part) * ms for part, ms in zip(parts, of_kind, strict=True))
            for kind, of_kind in enumerate(zip(*times, strict=True))
        )

    def room(*, first: bool, last: bool) -> int:
        """Bytes of whole layers that fit. All have the embedding, and rank 0 the head."""
        rooms = (
            (device.memory - shape.ends_memory(first=first, last=last and rank == 0)) / share
            for rank, (device, share) in enumerate(zip(own, most, strict=True))
        )
        return int(min(rooms))

    def read_together(times: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """The same of the times of reading caches, if all have measured them."""
        return together(times, 0.0) if all(times) else ()

    decode_ms = together([device.decode_ms for device in own], one)
    return RankGroup(
        members=tuple(members),
        shares=shares,
        cost=replace(
            own[0],
            memory=max(0, room(first=False, last=False)),
            decode_ms=decode_ms,
            prefill_ms=together([device.prefill_ms for device in own], chunk),
            token_read_ms=read_together([device.token_read_ms for device in own]),
            chunk_read_ms=read_together([device.chunk_read_ms for device in own]),
        ),
        span=span_in(shape, decode_ms, room),
        sums_ms=one,
    )


def weigh_groups(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    *,
    sums: Sums,
    prefill_tokens: int,
) -> tuple[tuple[RankGroup, ...], Tried | None]:
    """The groups that are worth a comparison, and the fastest one whose sums were measured, whether it is or not.

    A layer takes them less than it takes their slowest member alone, for a token and for a prompt. One that takes more is
    no better than its members one after the other, who hold as many layers. Of more than `MOST_GROUPS`, the fastest are
    taken.
    """
    if not any(shape.divided):
        return (), None
    known = {frozenset(pair) for pair in sums}
    found: list[RankGroup] = []
    measured: list[Tried] = []
    able = [i for i, device in enumerate(devices) if _may_rank(device)]
    sizes = range(2, min(len(able), MOST_MEMBERS) + 1)
    for members in chain.from_iterable(combinations(able, size) for size in sizes):
        pairs = combinations([devices[i].node for i in members], 2)
        is_measured = all(frozenset(pair) in known for pair in pairs)
        if shape.has_tables and not is_measured:
            continue
        ordered = sorted(members, key=lambda i: (sum(devices[i].decode_ms), i))
        group = group_of(shape, devices, links, ordered, sums=sums, prefill_tokens=prefill_tokens)
        if (against := _against(shape, group, devices[ordered[-1]])) is None:
            found.append(group)
        if is_measured:
            measured.append(Tried(group=group, against=against))
    found.sort(key=_speed)
    taken = tuple(found[:MOST_GROUPS])
    best = min(measured, key=lambda tried: _speed(tried.group), default=None)
    if best is not None and best.against is None and best.group not in taken:
        best = replace(best, against="others")
    return taken, best


def _against(shape: ModelShape, group: RankGroup, slowest: DeviceCost) -> Reason | None:
    """Why this group is not worth a comparison; None: it is."""
    if shape.has_tables:
        return "tables"
    if group.span.most_layers < 1:
        return "memory"
    if sum(group.cost.decode_ms) >= sum(slowest.decode_ms):
        return "sums"
    return "prompts" if sum(group.cost.prefill_ms) > sum(slowest.prefill_ms) else None


def _speed(group: RankGroup) -> tuple[float, tuple[int, ...]]:
    return sum(group.cost.decode_ms), group.members


def _may_rank(device: DeviceCost) -> bool:
    return device.can_rank and device.memory > 0 and not device.is_apart


def sums_ms(links: Links, members: Sequence[DeviceCost], nbytes: int, sums: Sums) -> float:
    """The time of a layer's sums, in each of which every member sends so many bytes to all others.

    What was not measured takes as long as a step to the next stage: weights have just gone through the caches there too.
    Sums of processors were, which say nothing of those of GPUs.
    """

    def between(a: DeviceCost, b: DeviceCost) -> HopCost:
        is_measured = a.can_rank and b.can_rank
        known = sums.get((a.node, b.node)) or sums.get((b.node, a.node)) if is_measured else None
        return known or hop_between(links, a.node, b.node)

    hops = [between(a, b) for a, b in permutations(members, 2)]
    others = len(members) - 1
    return SUMS * max(hop.latency_ms + others * nbytes * hop.ms_per_byte for hop in hops)


def memory_of(
    shape: ModelShape, group: RankGroup, rank: int, layers: range, *, first: bool, last: bool
) -> int:
    """Bytes of one member's share of these layers, and of the ends that it has."""
    memory, part = shape.layer_memory, group.parts[rank]
    kinds = shape.layers[layers.start : layers.stop]
    own = sum(memory[kind] * shape.share(kind, part) for kind in kinds)
    return int(own) + shape.ends_memory(first=first, last=last and rank == 0)


def with_groups(problem: Problem, groups: Sequence[RankGroup]) -> Problem:
    """The problem with each group as one more device, at the place of its rank 0."""
    places = [*range(problem.size), *(group.members[0] for group in groups)]
    made_of = [*((i,) for i in range(problem.size)), *(group.members for group in groups)]

    def workers(group: RankGroup) -> int:
        bits = 0
        for member in group.members:
            bits |= problem.workers[member]
        return bits

    return replace(
        problem,
        spans=(*problem.spans, *(group.span for group in groups)),
        head_ms=tuple(problem.head_ms[i] for i in places),
        enter_ms=tuple(problem.enter_ms[i] for i in places),
        leave_ms=tuple(problem.leave_ms[i] for i in places),
        hop_ms=tuple(tuple(problem.hop_ms[i][j] for j in places) for i in places),
        workers=(*problem.workers, *map(workers, groups)),
        uses=tuple(sum(1 << i for i in parts) for parts in made_of) if groups else (),
    )


def _by_speed(devices: Sequence[DeviceCost]) -> tuple[int, ...]:
    """How many of so many parts of a layer each device has, by its speed; each has at least one.

    Of the fewest parts with which none takes much longer than with exact ones. So the shares, and with them the slices on
    the ranks' disks, stay as they are when measurements change a little.
    """
    speeds = [1 / max(sum(device.decode_ms), 1e-9) for device in devices]
    exact = [speed / sum(speeds) for speed in speeds]
    shares = [1] * len(speeds)
    for parts in range(len(speeds), PARTS + 1):
        shares = [max(1, round(parts * share)) for share in exact]
        longest = max(own / share for own, share in zip(shares, exact, strict=True)) / sum(shares)
        if longest <= 1 + LONGER:
            break
    least = gcd(*shares)
    return tuple(share // least for share in shares)
