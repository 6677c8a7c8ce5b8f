"""Find the best route where layers differ in bytes or in time.

Which layers a device has then depends on its place, so the tour and the layers no longer decouple:

    least[set, last, layers] = min over (previous last, start) of
        least[set without last, previous, start] + hop(previous, last) + time(last, start … layers)

with `start` bounded by the memory of `last`. The minimum over `start` is a sliding window
(`potluck.plan.spans.extend`), so this is exact in O(2ᴺ·N²·L) steps. Without the times the same
recursion says whether anything fits at all: a set of numbers of layers for each set of devices, kept
as the bits of one integer.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf
from operator import add

from potluck.plan.cost import ModelShape
from potluck.plan.route import (
    TIE_MS,
    Problem,
    Route,
    around,
    evaluate,
    is_allowed,
    is_better,
)
from potluck.plan.spans import Span, begin, extend, finish, span_of

FITTING_SEATS = 13  # 2¹³ sets: some 20 ms, and `missing_memory` asks a dozen times


class Exact:
    """The recursion over sets of devices, their last one, and how many layers they have."""

    def __init__(self, problem: Problem) -> None:
        assert problem.spans is not None
        self._problem = problem
        self._spans = problem.spans
        self._allowed = _allowed_sets(problem)
        self._layer_ms = [[b - a for a, b in pairwise(span.ms)][::-1] for span in self._spans]
        self._out_ms = list(map(add, problem.head_ms, problem.leave_ms))
        self._ways: list[dict[int, list[float]]] = [{} for _ in self._allowed]
        self._best: Route | None = None

    def solve(self) -> Route | None:
        if (some := any_route(self._problem)) is not None:  # what is worse need not be followed
            self._best = evaluate(self._problem, some)
        for i, span in enumerate(self._spans):
            self._offer((i,) if self._allowed[1 << i] else ())
            self._ways[1 << i][i] = begin(span, self._problem.enter_ms[i])
        for chosen in range(1, len(self._ways) - 1):
            if self._ways[chosen]:
                others = [i for i in range(len(self._spans)) if not chosen >> i & 1]
                rest_ms = self._rest_ms(others)
                for following in others:
                    self._follow(chosen, following, rest_ms)
        return self._best and replace(self._best, exact=True)

    def _rest_ms(self, others: Sequence[int]) -> list[float]:
        """For every number of layers placed, the least that the others can add to a token."""
        out_ms = min(self._out_ms[i] for i in others)
        layer_ms = [self._layer_ms[i] for i in others]
        least = layer_ms[0] if len(others) == 1 else map(min, *layer_ms)
        return list(accumulate(least, initial=out_ms))[::-1]

    def _follow(self, chosen: int, following: int, rest_ms: Sequence[float]) -> None:
        """One more device behind the ways of a set: as the last one, and as one before others."""
        span, wider = self._spans[following], chosen | 1 << following
        ways = self._arrivals(chosen, following)
        best_ms = self._best.ms if self._best else inf
        if min(map(add, ways, rest_ms)) >= min(best_ms + TIE_MS, inf):
            return
        if self._allowed[wider]:
            ms = finish(ways, span) + self._out_ms[following]
            size = len(self._best.seats) if self._best else 0
            if is_better(ms, wider.bit_count(), best_ms, size):
                self._offer(self._order(chosen, following))
        if wider + 1 < len(self._ways):
            self._ways[wider][following] = extend(ways, span)

    def _arrivals(self, chosen: int, following: int) -> list[float]:
        """The least times at which a set of devices hands over, for every number of its layers."""
        hop_ms = self._problem.hop_ms
        shifted = [
            [ms + hop_ms[last][following] for ms in ways]
            for last, ways in self._ways[chosen].items()
        ]
        return shifted[0] if len(shifted) == 1 else list(map(min, *shifted))

    def _order(self, chosen: int, last: int) -> tuple[int, ...]:
        """The devices of the least time of a set with a last one behind."""
        seats, stop = [last], self._problem.num_layers
        while chosen.bit_count() > 1:
            span, is_last = self._spans[last], len(seats) == 1
            _, stop, previous = min(
                (ways[start] + self._problem.hop_ms[before][last] - span.ms[start], start, before)
                for before, ways in self._ways[chosen].items()
                for start in range(1, stop)
                if span.holds(range(start, stop), first=False, last=is_last)
            )
            seats.append(previous)
            chosen, last = chosen ^ 1 << previous, previous
        return (chosen.bit_length() - 1, *reversed(seats))

    def _offer(self, seats: tuple[int, ...]) -> None:
        route, best = evaluate(self._problem, seats), self._best
        if route and (best is None or is_better(route.ms, len(seats), best.ms, len(best.seats))):
            self._best = route


def any_route(problem: Problem) -> tuple[int, ...] | None:
    """Some route that fits and is allowed, or None if none is found.

    Up to `FITTING_SEATS` devices that is exact, in O(2ᴺ·N) where every layer fits everyone.
    """
    if len(problem.rooms) > FITTING_SEATS:
        return some_route(problem)
    assert problem.spans is not None
    spans, allowed = problem.spans, _allowed_sets(problem)
    takes_any = [span.takes_any for span in spans]
    before_end = (1 << problem.num_layers) - 1
    placed = [0] * len(allowed)  # bit k: exactly this set can hold the first k layers
    for i, span in enumerate(spans):
        if span.only and allowed[1 << i]:
            return (i,)
        placed[1 << i] = (2 << span.first) - 2
    for chosen in range(1, len(placed)):
        starts = placed[chosen] & before_end
        for following, span in enumerate(spans):
            if not starts or chosen >> following & 1:
                continue
            wider = chosen | 1 << following
            if allowed[wider] and starts >> span.last:
                return (*_behind(spans, placed, chosen, starts.bit_length() - 1), following)
            placed[wider] |= _stops(starts, span, takes_any[following])
    return None


def _behind(spans: Sequence[Span], placed: list[int], chosen: int, stop: int) -> tuple[int, ...]:
    """An order in which a set of devices holds exactly so many layers, which it can."""
    seats: list[int] = []
    while chosen.bit_count() > 1:
        start, last = next(
            (start, i)
            for i, span in enumerate(spans)
            if chosen >> i & 1
            for start in range(stop - 1, 0, -1)
            if placed[chosen ^ 1 << i] >> start & 1 and span.reach[start] >= stop
        )
        seats.append(last)
        chosen, stop = chosen ^ 1 << last, start
    return (chosen.bit_length() - 1, *reversed(seats))


def some_route(problem: Problem) -> tuple[int, ...] | None:
    """A route that fits and is allowed, or None if none is found: a heuristic, in O(N³·L).

    As for equal layers the devices with most room come first between the two ends, and where layers
    do not divide well, as many more as it needs.
    """
    everyone = range(len(problem.rooms))
    for i in everyone:
        if problem.rooms[i].only and is_allowed(problem, (i,)):
            return (i,)
    by_room = sorted(everyone, key=lambda i: -problem.rooms[i].middle)
    for first in everyone:
        for last in everyone:
            if first == last:
                continue
            seats = around(problem, first, last, by_room)
            further = [i for i in by_room if i not in seats and problem.rooms[i].middle]
            while not _reaches(problem, seats) and further:
                seats = (*seats[:-1], further.pop(0), last)
            if _reaches(problem, seats) and evaluate(problem, seats) is not None:
                return seats
    return None


def missing_memory(shape: ModelShape, problem: Problem) -> int:
    """The memory of the smallest further computer with which the model fits.

    It is the size of some range of layers, found by bisection over what `any_route` says.
    """
    size = shape.layer_memory
    held = list(accumulate((size[kind] for kind in shape.layers), initial=0))
    end = shape.num_layers
    ends = {
        (first, last): shape.ends_memory(first=first, last=last)
        for first in (False, True)
        for last in (False, True)
    }
    sizes = sorted(
        {
            held[stop] - held[start] + ends[start == 0, stop == end]
            for start in range(end)
            for stop in range(start + 1, end + 1)
        }
    )
    low, high = 0, sizes.index(shape.model_memory)  # with everything on it, it fits
    while low < high:
        middle = (low + high) // 2
        wider = _with_device(problem, span_of(shape, [0.0] * len(size), sizes[middle]))
        if any_route(wider) is None:
            low = middle + 1
        else:
            high = middle
    return sizes[low]


def _with_device(problem: Problem, span: Span) -> Problem:
    """One device more, with no other demand than that everything fits."""
    assert problem.spans is not None
    return replace(
        problem,
        spans=(*problem.spans, span),
        layer_ms=(*problem.layer_ms, 0.0),
        head_ms=(*problem.head_ms, 0.0),
        rooms=(*problem.rooms, span.room),
        enter_ms=(*problem.enter_ms, 0.0),
        leave_ms=(*problem.leave_ms, 0.0),
        hop_ms=(*((*row, 0.0) for row in problem.hop_ms), (0.0,) * (len(problem.rooms) + 1)),
        workers=(*problem.workers, 0),
        required=frozenset(),
        min_workers=0,
    )


def _allowed_sets(problem: Problem) -> list[bool]:
    """For every set of devices, as bits, whether enough computers and all required ones are in it."""
    required = sum(1 << i for i in problem.required)
    workers = [0]
    for chosen in range(1, 1 << len(problem.rooms)):
        low = chosen & -chosen
        workers.append(workers[chosen ^ low] | problem.workers[low.bit_length() - 1])
    return [
        mask.bit_count() >= problem.min_workers and chosen & required == required
        for chosen, mask in enumerate(workers)
    ]


def _stops(starts: int, span: Span, takes_any: bool) -> int:
    """Where the ranges of one device can end that begin at these numbers of layers; all as bits."""
    low = starts & -starts
    if takes_any and not starts + low & starts:  # one run of bits: so are the ranges' ends
        return (2 << span.reach[starts.bit_length() - 1]) - (low << 1)
    stops = 0
    while starts:
        low = starts & -starts
        stops |= (2 << span.reach[low.bit_length() - 1]) - (low << 1)
        starts ^= low
    return stops


def _reaches(problem: Problem, seats: Sequence[int]) -> bool:
    """Whether the devices hold all layers when each takes as many as it can."""
    assert problem.spans is not None
    placed = problem.spans[seats[0]].first
    if not placed or len(seats) > problem.num_layers:
        return False
    for k, i in enumerate(seats[1:], start=1):
        placed = min(placed, problem.num_layers - len(seats) + k)  # one for each that follows
        if k < len(seats) - 1:
            placed = problem.spans[i].reach[placed]
    return placed >= problem.spans[seats[-1]].last
