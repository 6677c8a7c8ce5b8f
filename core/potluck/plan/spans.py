"""Layers that differ: which ranges of them a device can hold, and what they take there.

Where all layers cost the same, counting them is enough (`potluck.plan.partition`). Where they do
not (experts in some, a sliding window in others) it matters which ones a device has. For a given
order of the devices the best division is found layer by layer; the least over all starts of a range
is kept in a sliding window, since a later start never reaches less far: O(devices · layers).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from potluck.plan.cost import ModelShape
from potluck.plan.partition import Room

_ROUNDING_MS = 1e-9  # a bound is met by the range that it came from


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One device: the ranges of layers that it can hold, by its place on the route."""

    ms: tuple[float, ...]  # of one token in the first 0, 1, … all layers
    reach: tuple[int, ...]  # between others: for every start the furthest stop
    first: int  # with the embedding: the furthest stop
    last: int  # with the head: the earliest start; the number of layers where it holds none
    only: bool  # whether it holds everything

    @property
    def num_layers(self) -> int:
        return len(self.reach)

    @property
    def takes_any(self) -> bool:
        """Whether every layer on its own has room."""
        return all(stop > start for start, stop in enumerate(self.reach))

    @property
    def room(self) -> Room:
        """The most layers at each place."""
        return Room(
            middle=max(stop - start for start, stop in enumerate(self.reach)),
            first=self.first,
            last=self.num_layers - self.last,
            only=self.num_layers * self.only,
        )

    def holds(self, layers: range, *, first: bool, last: bool) -> bool:
        if first and last:
            return self.only
        if first:
            return layers.stop <= self.first
        return layers.start >= self.last if last else layers.stop <= self.reach[layers.start]

    def limited(self, middle_ms: float, last_ms: float) -> "Span":
        """The same with ranges that take no longer, as the last one or elsewhere."""
        ms, end = self.ms, self.num_layers

        def furthest(start: int) -> int:
            return bisect_right(ms, ms[start] + middle_ms + _ROUNDING_MS) - 1

        earliest = bisect_left(ms, ms[end] - last_ms - _ROUNDING_MS, hi=end)
        too_little = last_ms < -_ROUNDING_MS
        return replace(
            self,
            reach=tuple(min(stop, furthest(start)) for start, stop in enumerate(self.reach)),
            first=min(self.first, furthest(0)),
            last=end if too_little else max(self.last, earliest),
            only=self.only and not too_little and earliest == 0,
        )


def span_of(shape: ModelShape, decode_ms: Sequence[float], memory: int) -> Span:
    """The ranges that a device with so much memory and such times of each kind can hold."""
    sizes = shape.layer_memory
    held = list(accumulate((sizes[kind] for kind in shape.layers), initial=0))

    def room(*, first: bool, last: bool) -> int:
        return memory - shape.ends_memory(first=first, last=last)

    middle, as_last = room(first=False, last=False), room(first=False, last=True)
    end = shape.num_layers
    return Span(
        ms=tuple(accumulate((decode_ms[kind] for kind in shape.layers), initial=0.0)),
        reach=tuple(
            max(start, bisect_right(held, held[start] + middle) - 1) for start in range(end)
        ),
        first=max(0, bisect_right(held, room(first=True, last=False)) - 1),
        last=min(end, bisect_left(held, held[end] - as_last)),
        only=held[end] <= room(first=True, last=True),
    )


def begin(span: Span, enter_ms: float = 0.0) -> list[float]:
    """What it takes to have placed so many layers, all on the first device; `inf` where impossible."""
    ways = [inf] * (span.num_layers + 1)
    for stop in range(1, span.first + 1):
        ways[stop] = enter_ms + span.ms[stop]
    return ways


def extend(ways: Sequence[float], span: Span) -> list[float]:
    """The same with a further device behind, which holds at least one layer and is not the last."""
    ms, reach = span.ms, span.reach
    further = [inf] * len(ways)
    window: deque[tuple[float, int]] = deque()  # of starts that reach on: least time first
    for stop in range(1, len(ways)):
        start = stop - 1
        if (way := ways[start]) < inf:
            least = way - ms[start]
            while window and window[-1][0] >= least:
                window.pop()
            window.append((least, start))
        while window and reach[window[0][1]] < stop:
            window.popleft()
        if window:
            further[stop] = window[0][0] + ms[stop]
    return further


def finish(ways: Sequence[float], span: Span) -> float:
    """The least time with the last device behind, without its head; `inf` where it does not fit."""
    ms, end = span.ms, span.num_layers
    rest = [ways[start] - ms[start] for start in range(max(1, span.last), end)]
    return min(rest, default=inf) + ms[end]


def divide(spans: Sequence[Span]) -> list[int] | None:
    """How many layers each device has, in the order given, so that a token takes least time.

    Returns:
        The layers of each device, one at least; None where they do not fit.
    """
    end = spans[0].num_layers
    if len(spans) == 1:
        return [end] if spans[0].only else None
    stages = [begin(spans[0])]
    for span in spans[1:-1]:
        stages.append(extend(stages[-1], span))
    if finish(stages[-1], spans[-1]) == inf:
        return None
    cuts = [end]
    for k in range(len(spans) - 1, 0, -1):
        cuts.append(cut(stages[k - 1], spans[k], cuts[-1]))
    cuts.append(0)
    cuts.reverse()
    return [stop - start for start, stop in pairwise(cuts)]


def cut(ways: Sequence[float], span: Span, stop: int) -> int:
    """Where the range of a device that ends at `stop` best begins; at the end it is the last one."""
    is_last = stop == span.num_layers
    starts = (
        start
        for start in range(1, stop)
        if ways[start] < inf and span.holds(range(start, stop), first=False, last=is_last)
    )
    return min(starts, key=lambda start: ways[start] - span.ms[start])
