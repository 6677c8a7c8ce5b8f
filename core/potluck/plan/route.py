"""Routes: devices in an order, with layers on each, and what a token takes on its way through them.

The planner's question in numbers, away from names and bytes. What is best is the matter of
`potluck.plan.search`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from potluck.plan.partition import Room, fill
from potluck.plan.spans import Span, divide

TIE_MS = 1e-9  # routes closer than this are equal; then the one with fewer devices wins


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The planner's question in numbers; devices are indices into every sequence."""

    num_layers: int
    layer_ms: tuple[float, ...]  # of one layer; the mean where they differ
    head_ms: tuple[float, ...]
    rooms: tuple[Room, ...]  # where layers differ, the most that fit
    enter_ms: tuple[float, ...]  # from the master's driver
    leave_ms: tuple[float, ...]  # back to it
    hop_ms: tuple[tuple[float, ...], ...]
    workers: tuple[int, ...]  # whose a device is, as one bit; 0 is the master's own
    spans: tuple[Span, ...] | None = None  # where layers differ
    min_workers: int = 0
    required: frozenset[int] = frozenset()  # devices that must take part

    def only(self, seats: Sequence[int], required: Sequence[int] = ()) -> "Problem":
        """The same question about some of the devices, renumbered in the order given."""

        def pick(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(values[i] for i in seats)

        return replace(
            self,
            layer_ms=pick(self.layer_ms),
            head_ms=pick(self.head_ms),
            rooms=tuple(self.rooms[i] for i in seats),
            enter_ms=pick(self.enter_ms),
            leave_ms=pick(self.leave_ms),
            hop_ms=tuple(pick(self.hop_ms[i]) for i in seats),
            workers=tuple(self.workers[i] for i in seats),
            spans=self.spans and tuple(self.spans[i] for i in seats),
            required=frozenset(
                k for k, i in enumerate(seats) if i in self.required or i in required
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Devices in the order in which a token visits them."""

    seats: tuple[int, ...]
    counts: tuple[int, ...]  # layers of each
    ms: float  # of one token, on the whole way
    exact: bool


def is_better(ms: float, size: int, best_ms: float, best_size: int) -> bool:
    """Whether a route is faster than the best one so far, or as fast with fewer devices."""
    return ms < best_ms - TIE_MS or (ms <= best_ms + TIE_MS and size < best_size)


def evaluate(problem: Problem, seats: tuple[int, ...]) -> Route | None:
    """The best layers for this order; None where it is not allowed or does not fit."""
    if not seats or not is_allowed(problem, seats):
        return None
    if problem.spans is not None:
        counts = divide([problem.spans[i] for i in seats])
    else:
        rooms = [problem.rooms[i] for i in seats]
        end = len(seats) - 1
        caps = [room.at(first=k == 0, last=k == end) for k, room in enumerate(rooms)]
        counts = fill(problem.num_layers, [problem.layer_ms[i] for i in seats], caps)
    if counts is None:
        return None
    ms = route_cost_ms(problem, seats, counts)
    return Route(seats=seats, counts=tuple(counts), ms=ms, exact=False)


def route_cost_ms(problem: Problem, seats: Sequence[int], counts: Sequence[int]) -> float:
    """One token on the whole way: its layers, the head and the tour."""
    return sum(_stages_ms(problem, seats, counts)) + tour_ms(problem, seats)


def tour_ms(problem: Problem, seats: Sequence[int]) -> float:
    """From the master through the devices and back."""
    hops = sum(problem.hop_ms[a][b] for a, b in pairwise(seats))
    return problem.enter_ms[seats[0]] + hops + problem.leave_ms[seats[-1]]


def slowest_ms(problem: Problem, route: Route) -> float:
    """What the slowest device takes for one token: many users wait for it."""
    return max(_stages_ms(problem, route.seats, route.counts))


def _stages_ms(problem: Problem, seats: Sequence[int], counts: Sequence[int]) -> list[float]:
    if problem.spans is None:
        times = [problem.layer_ms[i] * n for i, n in zip(seats, counts, strict=True)]
    else:
        sums = [problem.spans[i].ms for i in seats]
        shares = ranges(counts)
        times = [ms[own.stop] - ms[own.start] for ms, own in zip(sums, shares, strict=True)]
    times[-1] += problem.head_ms[seats[-1]]
    return times


def ranges(counts: Sequence[int]) -> list[range]:
    """Which layers those are, the first device having the first."""
    return [range(a, b) for a, b in pairwise(accumulate(counts, initial=0))]


def is_full(problem: Problem, route: Route, k: int) -> bool:
    """Whether the device on place `k` has no room for the next layer on either side."""
    i, first, last = route.seats[k], k == 0, k == len(route.seats) - 1
    if problem.spans is None:
        return route.counts[k] == problem.rooms[i].at(first=first, last=last)
    own = ranges(route.counts)[k]
    wider = [] if first else [range(own.start - 1, own.stop)]
    wider += [] if last else [range(own.start, own.stop + 1)]
    return not any(problem.spans[i].holds(more, first=first, last=last) for more in wider)


def any_route(problem: Problem) -> tuple[int, ...] | None:
    """Some route that fits and is allowed, or None if there is none. Exact for equal layers, in O(N³).

    Once the two ends are fixed, only the number of devices and the sum of their room matter: the
    computers that must take part come first, then whoever has the most room. Where layers differ, see
    `potluck.plan.unequal`.
    """
    everyone = range(len(problem.rooms))
    for first in everyone:
        if problem.rooms[first].only >= problem.num_layers and is_allowed(problem, (first,)):
            return (first,)
    by_room = sorted(everyone, key=lambda i: -problem.rooms[i].middle)
    for first in everyone:
        for last in everyone:
            if first != last:
                seats = around(problem, first, last, by_room)
                if evaluate(problem, seats) is not None:
                    return seats
    return None


def lower_bound_ms(problem: Problem) -> float:
    """No route is faster: the layers where they run fastest, and no tour but the cheapest way in and out."""
    layer_ms, each_at_best = problem.layer_ms, 0.0
    if problem.spans is not None:
        times = [[b - a for a, b in pairwise(span.ms)] for span in problem.spans]
        each_at_best = sum(map(min, zip(*times, strict=True)))
        layer_ms = tuple(map(min, times))
    left, total = problem.num_layers, 0.0
    for i in sorted(range(len(problem.rooms)), key=layer_ms.__getitem__):
        layers = min(left, problem.rooms[i].middle)
        total += layers * layer_ms[i]
        left -= layers
    if left > 0:
        return inf
    return (
        max(total, each_at_best)
        + min(problem.enter_ms)
        + min(head + leave for head, leave in zip(problem.head_ms, problem.leave_ms, strict=True))
    )


def workers_of(problem: Problem, seats: Sequence[int]) -> int:
    """How many computers other than the master take part."""
    workers = 0
    for i in seats:
        workers |= problem.workers[i]
    return workers.bit_count()


def is_allowed(problem: Problem, seats: tuple[int, ...]) -> bool:
    """Whether enough computers and all required devices take part."""
    enough = workers_of(problem, seats) >= problem.min_workers
    return enough and problem.required.issubset(seats)


def around(problem: Problem, first: int, last: int, by_room: list[int]) -> tuple[int, ...]:
    """Two ends, and between them who is required, who makes up the number, and who has most room."""
    between = [i for i in by_room if i in problem.required and i not in (first, last)]
    workers = problem.workers[first] | problem.workers[last]
    for i in between:
        workers |= problem.workers[i]
    rest = [i for i in by_room if i not in (first, last, *between) and problem.rooms[i].middle]
    for i in rest:
        if workers.bit_count() >= problem.min_workers:
            break
        if problem.workers[i] & ~workers:
            workers |= problem.workers[i]
            between.append(i)
    held = problem.rooms[first].first + problem.rooms[last].last
    held += sum(problem.rooms[i].middle for i in between)
    for i in rest:
        if held >= problem.num_layers:
            break
        if i not in between:
            held += problem.rooms[i].middle
            between.append(i)
    return (first, *between, last)
