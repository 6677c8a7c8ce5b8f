"""Routes: devices in an order, with layers on each, and what a token takes on its way through them.

The planner's question in numbers, away from names and bytes. What is best is the matter of
`potluck.plan.search`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from potluck.plan.partition import Room, fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The planner's question in numbers; devices are indices into every sequence."""

    num_layers: int
    layer_ms: tuple[float, ...]
    head_ms: tuple[float, ...]
    rooms: tuple[Room, ...]
    enter_ms: tuple[float, ...]  # from the master's driver
    leave_ms: tuple[float, ...]  # back to it
    hop_ms: tuple[tuple[float, ...], ...]
    workers: tuple[
        int, ...
    ]  # which computer a device belongs to, as one bit; 0 is the master's own
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


def evaluate(problem: Problem, seats: tuple[int, ...]) -> Route | None:
    """The best layers for this order; None where it is not allowed or does not fit."""
    if not seats or not _is_allowed(problem, seats):
        return None
    rooms = [problem.rooms[i] for i in seats]
    end = len(seats) - 1
    caps = [room.at(first=k == 0, last=k == end) for k, room in enumerate(rooms)]
    layer_ms = [problem.layer_ms[i] for i in seats]
    counts = fill(problem.num_layers, layer_ms, caps)
    if counts is None:
        return None
    ms = route_cost_ms(problem, seats, counts)
    return Route(seats=seats, counts=tuple(counts), ms=ms, exact=False)


def route_cost_ms(problem: Problem, seats: Sequence[int], counts: Sequence[int]) -> float:
    """One token on the whole way: its layers, the head and the tour."""
    layers = sum(problem.layer_ms[i] * count for i, count in zip(seats, counts, strict=True))
    return layers + problem.head_ms[seats[-1]] + tour_ms(problem, seats)


def tour_ms(problem: Problem, seats: Sequence[int]) -> float:
    """From the master through the devices and back."""
    hops = sum(problem.hop_ms[a][b] for a, b in pairwise(seats))
    return problem.enter_ms[seats[0]] + hops + problem.leave_ms[seats[-1]]


def slowest_ms(problem: Problem, route: Route) -> float:
    """What the slowest device takes for one token: many users wait for it."""
    times = [problem.layer_ms[i] * n for i, n in zip(route.seats, route.counts, strict=True)]
    times[-1] += problem.head_ms[route.seats[-1]]
    return max(times)


def any_route(problem: Problem) -> tuple[int, ...] | None:
    """Some route that fits and is allowed, or None if there is none. Exact, in O(N³).

    Once the two ends are fixed, only the number of devices and the sum of their room matter: the
    computers that must take part come first, then whoever has the most room.
    """
    everyone = range(len(problem.rooms))
    for first in everyone:
        if problem.rooms[first].only >= problem.num_layers and _is_allowed(problem, (first,)):
            return (first,)
    by_room = sorted(everyone, key=lambda i: -problem.rooms[i].middle)
    for first in everyone:
        for last in everyone:
            if first != last:
                seats = _around(problem, first, last, by_room)
                if evaluate(problem, seats) is not None:
                    return seats
    return None


def lower_bound_ms(problem: Problem) -> float:
    """No route is faster: the layers where they run fastest, and no tour but the cheapest way in and out."""
    left, total = problem.num_layers, 0.0
    for i in sorted(range(len(problem.rooms)), key=problem.layer_ms.__getitem__):
        layers = min(left, problem.rooms[i].middle)
        total += layers * problem.layer_ms[i]
        left -= layers
    if left > 0:
        return inf
    return (
        total
        + min(problem.enter_ms)
        + min(head + leave for head, leave in zip(problem.head_ms, problem.leave_ms, strict=True))
    )


def workers_of(problem: Problem, seats: Sequence[int]) -> int:
    """How many computers other than the master take part."""
    workers = 0
    for i in seats:
        workers |= problem.workers[i]
    return workers.bit_count()


def _is_allowed(problem: Problem, seats: tuple[int, ...]) -> bool:
    enough = workers_of(problem, seats) >= problem.min_workers
    return enough and problem.required.issubset(seats)


def _around(problem: Problem, first: int, last: int, by_room: list[int]) -> tuple[int, ...]:
    """Between two ends: who is required, who makes up the number of computers, who has most room."""
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
