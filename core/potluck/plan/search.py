"""Find the best route: which devices take part, in which order, with how many layers each.

A route costs what its layers cost, the head on its last device, and the closed tour from the master
through its devices and back. With equal layers the tour and the layers decouple: for a set of
devices with a given first and last one, the shortest tour (Held and Karp, 1962) and the
fastest-first fill are each best on their own. So

    best = min over (set, first, last) of  tour(set, first, last) + fill(set, first, last) + head(last)

which is exact, in O(2ᴺ·N³) steps, most of which a lower bound cuts off. Where layers differ, a
recursion over the layers too takes its place (`potluck.plan.unequal`), for one device less. Beyond
`EXACT_SEATS` devices a local search starts from the exact answer for the most promising ones;
`Route.exact` says which it was.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import inf

from potluck.plan import unequal
from potluck.plan.cost import ModelShape
from potluck.plan.partition import missing_memory
from potluck.plan.route import TIE_MS, Problem, Route, any_route, evaluate, is_better

EXACT_SEATS = 12  # 2¹² sets: well under a second in plain Python; every further seat doubles it


def best_route(problem: Problem) -> Route | None:
    """The fastest route for one token; None where nothing fits."""
    order = sorted(range(len(problem.layer_ms)), key=lambda i: (problem.layer_ms[i], i))
    ordered = problem.only(order)
    if len(order) <= _exact_seats(ordered):
        route = _solve(ordered) if fits(ordered) else None
    elif (fitting := _any_route(ordered)) is not None:
        route = _local_search(ordered, fitting)
    else:
        return None
    return route and replace(route, seats=tuple(order[i] for i in route.seats))


def fits(problem: Problem) -> bool:
    """Whether there is a route at all; with unequal layers and many devices, whether one is found."""
    return _any_route(problem) is not None


def missing(shape: ModelShape, problem: Problem) -> int:
    """The memory of the smallest further computer with which the model fits."""
    if problem.spans is None:
        return missing_memory(shape, problem.rooms)
    return unequal.missing_memory(shape, problem)


def _exact_seats(problem: Problem) -> int:
    # Layers that differ take about twice as long: with 11 devices and 80 layers half a second.
    return EXACT_SEATS if problem.spans is None else EXACT_SEATS - 1


def _any_route(problem: Problem) -> tuple[int, ...] | None:
    return any_route(problem) if problem.spans is None else unequal.any_route(problem)


def _solve(problem: Problem) -> Route | None:
    exact = _Exact(problem) if problem.spans is None else unequal.Exact(problem)
    return exact.solve()


def best_including(problem: Problem, route: Route, seat: int) -> Route | None:
    """What a token would take if one more device had to take part: others may give way to it."""
    if len(route.seats) < _exact_seats(problem):
        return best_route(problem.only([*route.seats, seat], required=[seat]))
    wider = [
        evaluate(problem, (*route.seats[:k], seat, *route.seats[k:]))
        for k in range(len(route.seats) + 1)
    ]
    return min((other for other in wider if other), key=lambda other: other.ms, default=None)


def best_slowest(problem: Problem) -> Route | None:
    """The route whose slowest device takes least; among those, the one fastest for one token.

    The least bound is one of the finitely many stage times, found by bisection over what still
    fits; the rest is `best_route` with the room cut down to that bound. How long a link is busy is
    left out: on a home network it is a small part of what a stage computes meanwhile.
    """
    bounds = sorted(_stage_times(problem))
    if not bounds:
        return None
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(_bounded(problem, bounds[middle])):
            high = middle
        else:
            low = middle + 1
    return best_route(_bounded(problem, bounds[low]))


def _stage_times(problem: Problem) -> set[float]:
    """All that any stage of any route may take."""
    if problem.spans is None:
        return {
            n * ms + head
            for ms, head_ms, room in zip(
                problem.layer_ms, problem.head_ms, problem.rooms, strict=True
            )
            for head in (0.0, head_ms)
            for n in range(1, max(room.middle, room.only) + 1)
        }
    return {
        stop_ms - start_ms + head
        for span, head_ms in zip(problem.spans, problem.head_ms, strict=True)
        for head in (0.0, head_ms)
        for start_ms, stop_ms in combinations(span.ms, 2)
    }


def _bounded(problem: Problem, bound_ms: float) -> Problem:
    if problem.spans is not None:
        spans = tuple(
            span.limited(bound_ms, bound_ms - head)
            for span, head in zip(problem.spans, problem.head_ms, strict=True)
        )
        return replace(problem, spans=spans, rooms=tuple(span.room for span in spans))

    def most(ms: float, available_ms: float) -> int:
        if available_ms < 0:
            return 0
        if ms == 0:
            return problem.num_layers
        return int(available_ms / ms + TIE_MS)  # a bound is met by the stage that it came from

    rooms = tuple(
        room.limited(most(ms, bound_ms), most(ms, bound_ms - head + TIE_MS))
        for room, ms, head in zip(problem.rooms, problem.layer_ms, problem.head_ms, strict=True)
    )
    return replace(problem, rooms=rooms)


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
            floor = self._floor_ms[chosen] - TIE_MS
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
        if ms + self._fill_ms[chosen] > self._best_ms + TIE_MS:
            return
        seats: list[int] = []
        while last >= 0:
            seats.append(last)
            ends = ways[chosen]
            assert ends is not None
            chosen, last = chosen ^ (1 << last), ends[last][1]
        seats.reverse()
        route = evaluate(problem, tuple(seats))
        if route and is_better(route.ms, len(seats), self._best_ms, len(self._best)):
            self._best_ms, self._best = route.ms, route.seats


def _local_search(problem: Problem, fitting: tuple[int, ...]) -> Route:
    """Improve a route that fits by one change at a time, until none helps.

    Where it is short enough, the exact answer for it and the fastest of the others is the start.
    """
    route = evaluate(problem, fitting)
    assert route is not None
    most = _exact_seats(problem)
    if len(fitting) <= most:
        others = [i for i in range(len(problem.rooms)) if i not in fitting]
        shortlist = sorted((*fitting, *others[: most - len(fitting)]))
        start = _solve(problem.only(shortlist))
        assert start is not None
        route = replace(start, seats=tuple(shortlist[i] for i in start.seats), exact=False)
    improved = True
    while improved:
        improved = False
        for seats in _neighbours(route.seats, len(problem.rooms)):
            other = evaluate(problem, seats)
            if other and is_better(other.ms, len(seats), route.ms, len(route.seats)):
                route, improved = other, True
                break
    return route


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
