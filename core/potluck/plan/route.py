"""Routes: devices in the order in which a token visits them, with a range of layers on each.

`Problem` is the planner's input in numbers, without names. `potluck.plan.search` solves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from potluck.plan.spans import Span

_MOST_BITS = 62
TIE_MS = 1e-9  # routes closer than this count as equally fast; then fewer devices are better


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The planner's input in numbers. A device is an index into each of the sequences."""

    held: tuple[int, ...]  # bytes of the first 0, 1, …, all layers
    spans: tuple[Span, ...]
    head_ms: tuple[float, ...]
    enter_ms: tuple[float, ...]  # from the master to the device
    leave_ms: tuple[float, ...]  # from the device to the master
    hop_ms: tuple[tuple[float, ...], ...]  # from device to device
    workers: tuple[int, ...]  # the computer of each device, as one bit; 0 is the master
    min_workers: int = 0
    required: frozenset[int] = frozenset()  # devices that must take part
    uses: tuple[int, ...] = ()
    """What each device is made of, as bits: a rank group is a device too. Those that have bits in common
    exclude each other. (): all are different."""

    @property
    def num_layers(self) -> int:
        return len(self.held) - 1

    @property
    def masks(self) -> tuple[int, ...]:
        """The bits of each device. Those beyond an int64 have none: a search does not get to them."""
        return self.uses or tuple(1 << i if i < _MOST_BITS else 0 for i in range(self.size))

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.spans)

    def layer_ms(self, i: int) -> float:
        """The mean time of one layer on a device."""
        return self.spans[i].ms[-1] / self.num_layers

    def only(self, devices: Sequence[int], required: Sequence[int] = ()) -> "Problem":
        """The same problem with some of the devices, renumbered in the order given."""

        def pick(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(values[i] for i in devices)

        return replace(
            self,
            spans=tuple(self.spans[i] for i in devices),
            head_ms=pick(self.head_ms),
            enter_ms=pick(self.enter_ms),
            leave_ms=pick(self.leave_ms),
            hop_ms=tuple(pick(self.hop_ms[i]) for i in devices),
            workers=tuple(self.workers[i] for i in devices),
            uses=tuple(self.masks[i] for i in devices) if self.uses else (),
            required=frozenset(
                k for k, i in enumerate(devices) if i in self.required or i in required
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Devices in the order in which a token visits them."""

    devices: tuple[int, ...]
    counts: tuple[int, ...]  # number of layers of each device
    ms: float  # of one token on the whole route
    bound_ms: float = 0.0  # proven lower bound: no route is faster

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven that no route is faster."""
        return self.bound_ms >= self.ms - TIE_MS


def route_cost_ms(problem: Problem, devices: Sequence[int], counts: Sequence[int]) -> float:
    """The time of one token on the whole route: its layers, the head and the hops."""
    return sum(_stages_ms(problem, devices, counts)) + tour_ms(problem, devices)


def tour_ms(problem: Problem, devices: Sequence[int]) -> float:
    """The time of the hops: from the master through the devices and back."""
    hops = sum(problem.hop_ms[a][b] for a, b in pairwise(devices))
    return problem.enter_ms[devices[0]] + hops + problem.leave_ms[devices[-1]]


def slowest_ms(problem: Problem, devices: Sequence[int], counts: Sequence[int]) -> float:
    """The time of the slowest device."""
    return max(_stages_ms(problem, devices, counts))


def _stages_ms(problem: Problem, devices: Sequence[int], counts: Sequence[int]) -> list[float]:
    times = [
        problem.spans[i].ms[own.stop] - problem.spans[i].ms[own.start]
        for i, own in zip(devices, ranges(counts), strict=True)
    ]
    times[-1] += problem.head_ms[devices[-1]]
    return times


def ranges(counts: Sequence[int]) -> list[range]:
    """The layers of each device, in order from the first layer."""
    return [range(a, b) for a, b in pairwise(accumulate(counts, initial=0))]


def is_full(problem: Problem, route: Route, k: int) -> bool:
    """Whether the device at place `k` of the route has no room for one more layer at either end."""
    span, first, last = problem.spans[route.devices[k]], k == 0, k == len(route.devices) - 1
    own = ranges(route.counts)[k]
    wider = [] if first else [range(own.start - 1, own.stop)]
    wider += [] if last else [range(own.start, own.stop + 1)]
    return not any(span.holds(more, first=first, last=last) for more in wider)


def workers_of(problem: Problem, devices: Sequence[int]) -> int:
    """How many computers other than the master take part."""
    workers = 0
    for i in devices:
        workers |= problem.workers[i]
    return workers.bit_count()
