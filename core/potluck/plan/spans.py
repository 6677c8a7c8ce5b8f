"""The ranges of layers that one device can hold, and the time that it takes for them.

Layers may differ in bytes and in time (some have experts, some a sliding window), and the first and
the last device hold the embedding and the head as well. So the ranges that a device can hold depend
on where they begin and on its place on the route.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol

from potluck.plan.cost import ModelShape

_ROUNDING_MS = 1e-9  # tolerance: a range must meet a limit that is its own computed time


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The ranges of layers that one device can hold, by its place on the route."""

    ms: tuple[float, ...]  # of one token in the first 0, 1, …, all layers
    reach: tuple[int, ...]  # the furthest stop for every start, if it stands between other devices
    first: int  # the furthest stop, if it is the first device
    last: int  # the earliest start, if it is the last; the number of layers if it can hold none
    only: bool  # whether it can hold the whole model

    @property
    def num_layers(self) -> int:
        return len(self.reach)

    @property
    def most_layers(self) -> int:
        """The length of the longest range between other devices."""
        return max(stop - start for start, stop in enumerate(self.reach))

    def holds(self, layers: range, *, first: bool, last: bool) -> bool:
        if first and last:
            return self.only
        if first:
            return layers.stop <= self.first
        return layers.start >= self.last if last else layers.stop <= self.reach[layers.start]

    def limited(self, limit_ms: float, last_limit_ms: float) -> "Span":
        """The same device with only the ranges that take no longer than a limit.

        `last_limit_ms` applies if it is the last device, and `limit_ms` at every other place.
        """
        ms, end = self.ms, self.num_layers

        def furthest(start: int) -> int:
            return bisect_right(ms, ms[start] + limit_ms + _ROUNDING_MS) - 1

        earliest = bisect_left(ms, ms[end] - last_limit_ms - _ROUNDING_MS, hi=end)
        too_little = last_limit_ms < -_ROUNDING_MS
        return replace(
            self,
            reach=tuple(min(stop, furthest(start)) for start, stop in enumerate(self.reach)),
            first=min(self.first, furthest(0)),
            last=end if too_little else max(self.last, earliest),
            only=self.only and not too_little and earliest == 0,
        )

    def slower_but_in(self, layers: Container[int], share: float) -> "Span":
        """The same ranges, with this share of the time more for each layer that is not among these."""
        times = (
            (after - before) * (1 if layer in layers else 1 + share)
            for layer, (before, after) in enumerate(pairwise(self.ms))
        )
        return replace(self, ms=tuple(accumulate(times, initial=0.0)))

    def without_times(self) -> "Span":
        """The same ranges, with time 0 for each."""
        return replace(self, ms=(0.0,) * len(self.ms))


def held_bytes(shape: ModelShape) -> tuple[int, ...]:
    """The bytes of the first 0, 1, …, all layers with their KV caches."""
    sizes = shape.layer_memory
    return tuple(accumulate((sizes[kind] for kind in shape.layers), initial=0))


class Room(Protocol):
    """Bytes of layers that a device can hold, as the first or the last one of a route, or between others."""

    def __call__(self, *, first: bool, last: bool) -> int: ...


def span_of(shape: ModelShape, decode_ms: Sequence[float], memory: int) -> Span:
    """The ranges that a device can hold.

    Args:
        shape: the sizes of the model.
        decode_ms: the device's time of one token in a layer, for each kind.
        memory: bytes that the device lends.
    """

    def room(*, first: bool, last: bool) -> int:
        return memory - shape.ends_memory(first=first, last=last)

    return span_in(shape, decode_ms, room)


def span_in(shape: ModelShape, decode_ms: Sequence[float], room: Room) -> Span:
    """The ranges that fit into this room; `decode_ms` as of `span_of`."""
    held, end = held_bytes(shape), shape.num_layers
    middle, as_last = room(first=False, last=False), room(first=False, last=True)
    return Span(
        ms=tuple(accumulate((decode_ms[kind] for kind in shape.layers), initial=0.0)),
        reach=tuple(
            max(start, bisect_right(held, held[start] + middle) - 1) for start in range(end)
        ),
        first=max(0, bisect_right(held, room(first=True, last=False)) - 1),
        last=min(end, bisect_left(held, held[end] - as_last)),
        only=held[end] <= room(first=True, last=True),
    )
