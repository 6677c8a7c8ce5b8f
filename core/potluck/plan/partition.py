"""Divide equal layers over the devices of one route, and say whether they fit at all.

Layers cannot be cut. The device that comes first also holds the embedding, the last one the head,
so how many layers a device can take depends on its place. Pure arithmetic: the order of the route is
the matter of `potluck.plan.search`, layers that differ that of `potluck.plan.spans`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.plan.cost import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many layers one device can take, by its place on the route."""

    middle: int
    first: int
    last: int
    only: int  # first and last at once

    def at(self, *, first: bool, last: bool) -> int:
        if first:
            return self.only if last else self.first
        return self.last if last else self.middle

    def limited(self, middle: int, last: int) -> "Room":
        """The same with no more than so many layers, as the last one or elsewhere."""
        return Room(
            middle=min(self.middle, middle),
            first=min(self.first, middle),
            last=min(self.last, last),
            only=min(self.only, last),
        )


def room_of(shape: ModelShape, memory: int) -> Room:
    """The room of a device that lends so much memory, where all layers have the same size."""

    def room(*, first: bool, last: bool) -> int:
        left = memory - shape.ends_memory(first=first, last=last)
        return max(0, min(left // shape.smallest_layer_memory, shape.num_layers))

    return Room(
        middle=room(first=False, last=False),
        first=room(first=True, last=False),
        last=room(first=False, last=True),
        only=room(first=True, last=True),
    )


def fill(num_layers: int, layer_ms: Sequence[float], caps: Sequence[int]) -> list[int] | None:
    """Give every device one layer and then as many as fit, the fastest first.

    With equal layers this is the least total time: moving a layer from a slower device to a faster
    one that has room never costs anything.

    Returns:
        The layers of each device, in the order given; None where they do not fit.
    """
    if len(caps) > num_layers or sum(caps) < num_layers or min(caps) < 1:
        return None
    counts = [1] * len(caps)
    left = num_layers - len(caps)
    for i in sorted(range(len(caps)), key=layer_ms.__getitem__):
        more = min(left, caps[i] - 1)
        counts[i] += more
        left -= more
    return counts


def missing_memory(shape: ModelShape, rooms: Sequence[Room]) -> int:
    """The memory of the smallest further computer with which the model fits.

    Layers are whole: what is left over on the computers that are there, too little for another
    layer, does not count. Given a model that does not fit yet.
    """
    best = shape.model_memory  # it holds everything
    if shape.num_layers < 2:
        return best
    total = sum(room.middle for room in rooms)
    firsts = [(room.first - room.middle, i) for i, room in enumerate(rooms) if room.first >= 1]
    lasts = [(room.last - room.middle, i) for i, room in enumerate(rooms) if room.last >= 1]

    def consider(held: int, *, first: bool, last: bool) -> None:
        nonlocal best
        layers = max(1, shape.num_layers - held)
        best = min(best, shape.stage_memory(range(layers), first=first, last=last))

    for change, _ in lasts:
        consider(total + change, first=True, last=False)
    for change, _ in firsts:
        consider(total + change, first=False, last=True)
    for first_change, first in firsts:
        for last_change, last in lasts:
            if first != last:
                consider(total + first_change + last_change, first=False, last=False)
    return best
