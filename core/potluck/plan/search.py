"""Find the best route: which devices take part, in which order, with how many layers each.

A route costs what its layers cost, the head on its last device, and the closed tour from the master
through its devices and back. With equal layers the tour and the layers decouple: for a set of
devices with a given first and last one, the shortest tour (Held and Karp, 1962) and the
fastest-first fill are each best on their own. So

    best = min over (set, first, last) of  tour(set, first, last) + fill(set, first, last) + head(last)

which is exact, in O(2ᴺ·N³) steps, most of which a lower bound cuts off. Beyond `EXACT_SEATS` devices
a local search starts from the exact answer for the most promising ones; `Route.exact` says which it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from potluck.plan.partition import Room, fill

EXACT_SEATS = 12  # 2¹² sets: well under a second in plain Python; every further seat doubles it

_TIE_MS = 1e-9  # routes closer than this are equal; then the one with fewer devices wins


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


def slowest_ms(problem: Problem, route: Route) -> float:
    """What the slowest device takes for one token: many users wait for it."""
    times = [problem.layer_ms[i] * n for i, n in zip(route.seats, route.counts, strict=True)]
    times[-1] += problem.head_ms[route.seats[-1]]
    return max(times)


def tour_ms(problem: Problem, seats: Sequence[int]) -> float:
    """From the master through the devices and back."""
    hops = sum(problem.hop_ms[a][b] for a, b in pairwise(seats))
    return problem.enter_ms[seats[0]] + hops + problem.leave_ms[seats[-1]]


def best_route(problem: Problem) -> Route | None:
    """The fastest route for one token; None where nothing fits."""
    if any_route(problem) is None:
        return None
    order = sorted(range(len(problem.layer_ms)), key=lambda i: (problem.layer_ms[i], i))
    if len(order) <= EXACT_SEATS:
        route = _Exact(problem.only(order)).solve()
    else:
        route = _local_search(problem.only(order))
    return route and replace(route, seats=tuple(order[i] for i in route.seats))


def best_slowest(problem: Problem) -> Route | None:
    """The route whose slowest device takes least; among those, the one fastest for one token.

    The least bound is one of the finitely many stage times, found by bisection over what still
    fits; the rest is `best_route` with the room cut down to that bound. How long a link is busy is
    left out: on a home network it is a small part of what a stage computes meanwhile.
    """
    bounds = sorted(
        {
            n * ms + head
            for ms, head_ms, room in zip(
                problem.layer_ms, problem.head_ms, problem.rooms, strict=True
            )
            for head in (0.0, head_ms)
            for n in range(1, max(room.middle, room.only) + 1)
        }
    )
    if not bounds:
        return None
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if any_route(_bounded(problem, bounds[middle])) is None:
            low = middle + 1
        else:
            high = middle
    return best_route(_bounded(problem, bounds[low]))


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


def _bounded(problem: Problem, bound_ms: float) -> Problem:
    def most(ms: float, available_ms: float) -> int:
        if available_ms < 0:
            return 0
        if ms == 0:
            return problem.num_layers
        return int(available_ms / ms + _TIE_MS)  # a bound is met by the stage that it came from

    rooms = tuple(
        room.limited(most(ms, bound_ms), most(ms, bound_ms - head + _TIE_MS))
        for room, ms, head in zip(problem.rooms, problem.layer_ms, problem.head_ms, strict=True)
    )
    return replace(problem, rooms=rooms)


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


class _Exact:
    """Held-Karp over all sets of devices, with the devices numbered from the fastest on."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._n = len(problem.layer_ms)
        self._required = sum(1 << i for i in problem.required)
        self._fill_ms, self._floor_ms, self._allowed = self._bounds()
        self._best_ms = inf
        self._best: tuple[int, ...] = ()

    def solve(self) -> Route | None:
        for first in range(self._n):
            self._search_from(first)
        route = evaluate(self._problem, self._best)
        return route and replace(route, exact=True)

    def _bounds(self) -> tuple[list[float], list[float], list[bool]]:
        """For every set of devices, two lower bounds on what its layers cost, and whether it may be a route.

        The first bound is of a route with exactly this set, the second of one with this set and any
        others. Both take every device for one in the middle of the route, where it has most room.
        """
        problem, n = self._problem, self._n
        everyone = (1 << n) - 1
        fills, floors, allowed = [inf], [0.0], [False]
        workers = [0]
        for chosen in range(1, 1 << n):
            low = chosen & -chosen
            workers.append(workers[chosen ^ low] | problem.workers[low.bit_length() - 1])
            fills.append(self._layers_ms(chosen, chosen))
            floors.append(self._layers_ms(chosen, everyone))
            allowed.append(
                workers[chosen].bit_count() >= problem.min_workers
                and chosen & self._required == self._required
            )
        return fills, floors, allowed

    def _layers_ms(self, chosen: int, usable: int) -> float:
        """One layer on each of the chosen devices, the others on the fastest usable ones."""
        problem = self._problem
        left = problem.num_layers - chosen.bit_count()
        if left < 0:
            return inf
        total = 0.0
        for i in range(self._n):
            if usable >> i & 1:
                room = problem.rooms[i].middle
                if chosen >> i & 1:
                    if room < 1:
                        return inf
                    total += problem.layer_ms[i]
                    room -= 1
                layers = min(left, room)
                total += layers * problem.layer_ms[i]
                left -= layers
        return total if left == 0 else inf

    def _search_from(self, first: int) -> None:
        """All routes that begin at one device: the shortest way to every (set, last)."""
        problem, n = self._problem, self._n
        if problem.rooms[first].first < 1:
            return
        start = 1 << first
        ways: list[dict[int, tuple[float, int]] | None] = [None] * (1 << n)  # last -> ms, previous
        ways[start] = {first: (problem.enter_ms[first], -1)}
        for chosen in range(start, 1 << n):
            ends = ways[chosen]
            if ends is None:
                continue
            floor = self._floor_ms[chosen] - _TIE_MS
            for last, (ms, _) in ends.items():
                if ms + floor >= self._best_ms:
                    continue
                if self._allowed[chosen]:
                    self._consider(ways, chosen, last, ms)
                hops = problem.hop_ms[last]
                for following in range(n):
                    bit = 1 << following
                    if chosen & bit:
                        continue
                    longer = ms + hops[following]
                    wider = ways[chosen | bit]
                    if wider is None:
                        wider = ways[chosen | bit] = {}
                    if following not in wider or longer < wider[following][0]:
                        wider[following] = (longer, last)

    def _consider(
        self, ways: list[dict[int, tuple[float, int]] | None], chosen: int, last: int, ms: float
    ) -> None:
        problem = self._problem
        ms += problem.leave_ms[last] + problem.head_ms[last]
        if ms + self._fill_ms[chosen] > self._best_ms + _TIE_MS:
            return
        seats: list[int] = []
        while last >= 0:
            seats.append(last)
            ends = ways[chosen]
            assert ends is not None
            chosen, last = chosen ^ (1 << last), ends[last][1]
        seats.reverse()
        route = evaluate(problem, tuple(seats))
        if route and _is_better(route.ms, len(seats), self._best_ms, len(self._best)):
            self._best_ms, self._best = route.ms, route.seats


def _is_better(ms: float, size: int, best_ms: float, best_size: int) -> bool:
    return ms < best_ms - _TIE_MS or (ms <= best_ms + _TIE_MS and size < best_size)


def _local_search(problem: Problem) -> Route | None:
    """Improve a good route by one change at a time until none helps."""
    route = _start(problem)
    improved = route is not None
    while improved and route is not None:
        improved = False
        for seats in _neighbours(route.seats, len(problem.rooms)):
            other = evaluate(problem, seats)
            if other and _is_better(other.ms, len(seats), route.ms, len(route.seats)):
                route, improved = other, True
                break
    return route


def _start(problem: Problem) -> Route | None:
    """The exact answer for a route that fits together with the fastest of the other devices."""
    fitting = any_route(problem)
    if fitting is None:
        return None
    promising = list(fitting)
    promising += [i for i in range(len(problem.rooms)) if i not in promising]
    if len(fitting) > EXACT_SEATS:
        return evaluate(problem, fitting)
    shortlist = sorted(promising[:EXACT_SEATS])
    route = _Exact(problem.only(shortlist)).solve()
    return route and replace(route, seats=tuple(shortlist[i] for i in route.seats), exact=False)


def _neighbours(seats: tuple[int, ...], n: int) -> Iterator[tuple[int, ...]]:
    """Every route that differs by one device, one move or one reversal."""
    size = len(seats)
    others = [i for i in range(n) if i not in seats]
    for k in range(size):
        yield seats[:k] + seats[k + 1 :]
    for k in range(size):
        for i in others:
            yield (*seats[:k], i, *seats[k + 1 :])
    for k in range(size + 1):
        for i in others:
            yield (*seats[:k], i, *seats[k:])
    for a in range(size):
        for b in range(a + 1, size):
            yield seats[:a] + seats[a : b + 1][::-1] + seats[b + 1 :]
            swapped = list(seats)
            swapped[a], swapped[b] = swapped[b], swapped[a]
            yield tuple(swapped)
    for k in range(size):
        rest = seats[:k] + seats[k + 1 :]
        for to in range(size):
            if to != k:
                yield (*rest[:to], seats[k], *rest[to:])
