"""Find the fastest route: which devices take part, in which order, and which layers each has.

`least[set, last, n]` is the least time in which a set of devices, ending with the device `last`,
can compute the first n layers of a token. One more device gives

    least[set + next, next, n] = min over (last, start) of
        least[set, last, start] + hop(last, next) + time(next, start … n)

with `start` bounded by the memory of `next`. This is the recursion of Held and Karp (1962), with
the layers added. The sets are followed size by size. At each size only the most promising sets are
kept, by the lower bound of `potluck.plan.bound`. Up to `EXACT_DEVICES` devices, all sets are kept
that may still lead to the best route. When sets are given up, their least bound is remembered: no
route through them is faster, so `Route.bound_ms` is a proven bound for all routes. Memory grows
with the square of the number of devices, and time with the cube.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb, inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from potluck.plan.bound import RestBound
from potluck.plan.route import TIE_MS, Problem, Route, route_cost_ms
from potluck.plan.spans import Span

EXACT_DEVICES = 12  # 4,095 sets take a tenth of a second; a home seldom has more devices
_MOST_DEVICES = 60  # a set is the bits of an int64
_FIRST_WIDTH = 16  # sets of each size in a first search, which is always finished

Times: TypeAlias = NDArray[np.float64]
Sets: TypeAlias = NDArray[np.int64]  # of devices, as bits
Stop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """Do not stop a search before its end."""
    return False


def best_route(problem: Problem, stop: Stop) -> Route | None:
    """The fastest route for one token.

    Args:
        problem: the devices, links and layers.
        stop: called often; once it returns True, the best route so far is returned.

    Returns:
        None if no route fits; beyond `EXACT_DEVICES` devices, if none was found.
    """
    useful = [i for i in range(problem.size) if problem.spans[i].most_layers > 0]
    order = sorted(useful, key=lambda i: _canonical(problem, i))
    if not problem.uses:
        order = order[:_MOST_DEVICES]
    if not order or not problem.required.issubset(order):
        return None
    ordered = problem.only(order)
    search = _Search(ordered, stop)
    route = search.route or (None if search.is_proven else _frugal(ordered, stop))
    if route is None:
        return None
    is_whole = len(order) == len(useful)
    bound_ms = min(route.ms, search.bound_ms if is_whole else RestBound(problem).whole_ms)
    return replace(route, devices=tuple(order[i] for i in route.devices), bound_ms=bound_ms)


def fits(problem: Problem, stop: Stop) -> bool:
    """Whether there is a route; beyond `EXACT_DEVICES` devices, whether one is found."""
    return best_route(_hops_only(problem), stop) is not None


def best_including(problem: Problem, route: Route, device: int, stop: Stop) -> Route | None:
    """The fastest route over this route's devices and one more, which must take part.

    The others need not take part.
    """
    return best_route(problem.only([*route.devices, device], required=[device]), stop)


def _canonical(problem: Problem, i: int) -> tuple[object, ...]:
    """The sort key of devices: with it, the order in which they are given makes no difference."""
    span = problem.spans[i]
    ends = problem.head_ms[i], problem.enter_ms[i], problem.leave_ms[i]
    return i not in problem.required, span.ms[-1], span.reach, ends, sorted(problem.hop_ms[i])


def _frugal(problem: Problem, stop: Stop) -> Route | None:
    """A route of few devices, for when the devices that seem fastest have too little memory."""
    route = _Search(_hops_only(problem), stop).route
    return route and replace(route, ms=route_cost_ms(problem, route.devices, route.counts))


def _hops_only(problem: Problem) -> Problem:
    """The same problem, but only hops take time: its best route has the fewest devices."""
    zero = (0.0,) * problem.size
    return replace(
        problem,
        spans=tuple(span.without_times() for span in problem.spans),
        head_ms=zero,
        enter_ms=zero,
        leave_ms=zero,
        hop_ms=((1.0,) * problem.size,) * problem.size,
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """All sets of what one number of devices is made of that are followed."""

    sets: Sets  # (S,) ascending
    least: Times  # (N, L + 1, S): by last device, number of layers and set; inf: no way


class _Search:
    """The recursion for one problem.

    A narrow search comes first: with its route, the wide search can leave out more sets.
    """

    def __init__(self, problem: Problem, stop: Stop) -> None:
        self.route: Route | None = None
        self._problem = problem
        self._end = problem.num_layers
        self._ms: Times = np.array([span.ms for span in problem.spans])  # (N, L + 1)
        self._hop_ms: Times = np.array(problem.hop_ms)  # (N, N)
        self._out_ms: Times = np.add(problem.head_ms, problem.leave_ms)
        self._extend = [_Extension(span) for span in problem.spans]
        self._rest = RestBound(problem)
        self._masks = problem.masks
        self.bound_ms = self._rest.whole_ms  # no route is faster
        self._run(_FIRST_WIDTH, never)
        self._run(_width(sum(mask.bit_count() == 1 for mask in self._masks)), stop)

    @property
    def is_proven(self) -> bool:
        """Whether it is proven that the route is the fastest one, or that there is no route."""
        return self.bound_ms >= self._best_ms - TIE_MS

    @property
    def _best_ms(self) -> float:
        return self.route.ms if self.route else inf

    def _run(self, width: int, stop: Stop) -> None:
        """Follow at most `width` sets of each size."""
        levels = [self._singles()]
        given_up_ms = inf
        while levels[-1].sets.size and not self.is_proven:
            stages = len(levels)
            level, least_ms = self._promising(levels.pop(), stages, 0 if stop() else width)
            given_up_ms = min(given_up_ms, least_ms)
            levels.append(level)
            levels.append(self._one_more(levels))
        self.bound_ms = max(self.bound_ms, min(given_up_ms, self._best_ms))

    def _singles(self) -> _Level:
        problem, n = self._problem, self._problem.size
        sets = np.unique(np.array(self._masks, dtype=np.int64))
        least = np.full((n, self._end + 1, sets.size), inf)
        for i, (span, mask) in enumerate(zip(problem.spans, self._masks, strict=True)):
            at = int(np.searchsorted(sets, mask))
            least[i, 1 : span.first + 1, at] = problem.enter_ms[i] + self._ms[i, 1 : span.first + 1]
            if span.only and self._allowed(np.array([mask]))[0]:
                self._offer((i,), (self._end,))
        return _Level(sets, least)

    def _promising(self, level: _Level, stages: int, width: int) -> tuple[_Level, float]:
        """The sets with the least bounds, and the least bound of the sets that are given up.

        A set that cannot lead to a faster route is left out too, but does not count as given up.
        """
        through_ms = (level.least + self._rest.of(level.sets)).min(axis=(0, 1))  # (S,)
        is_shorter = self.route is not None and stages < len(self.route.devices)
        kept = np.flatnonzero(through_ms < self._best_ms + (TIE_MS if is_shorter else -TIE_MS))
        given_up_ms = inf
        if kept.size > width:
            by_bound = kept[np.argsort(through_ms[kept], kind="stable")]
            given_up_ms = float(through_ms[by_bound[width]])
            kept = np.sort(by_bound[:width])
        return _Level(level.sets[kept], level.least[:, :, kept]), given_up_ms

    def _one_more(self, levels: Sequence[_Level]) -> _Level:
        """The sets with one more device. Routes that end with this device are offered."""
        level, n = levels[-1], self._problem.size
        found: list[tuple[int, Sets, Times]] = []
        for following in reversed(range(n)):  # among equal routes, prefer the fastest device first
            others = level.sets & self._masks[following] == 0
            if not others.any():
                continue
            hop_ms = self._hop_ms[:, following, None, None]
            arrivals = (level.least[:, :, others] + hop_ms).min(axis=0)  # (L + 1, S)
            arrivals -= self._ms[following, :, None]
            wider = level.sets[others] | self._masks[following]
            self._finish(levels, wider, following, arrivals)
            found.append((following, wider, self._extend[following](arrivals)))
        if not found:
            return _Level(level.sets[:0], level.least[:, :, :0])
        sets = np.unique(np.concatenate([wider for _, wider, _ in found]))
        least = np.full((n, self._end + 1, sets.size), inf)
        for following, wider, ways in found:
            least[following][:, np.searchsorted(sets, wider)] = ways
        return _Level(sets, least)

    def _finish(self, levels: Sequence[_Level], wider: Sets, last: int, arrivals: Times) -> None:
        """Offer the best route over one of these sets that ends with the device `last`."""
        starts = arrivals[max(1, self._problem.spans[last].last) : self._end]
        if not len(starts):
            return
        ms = starts.min(axis=0) + self._ms[last, -1] + self._out_ms[last]
        ms[~self._allowed(wider)] = inf
        best = int(ms.argmin())
        if ms[best] < self._best_ms + TIE_MS:
            self._offer(*self._way(levels, int(wider[best]), last))

    def _way(
        self, levels: Sequence[_Level], chosen: int, last: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The devices and layer counts that give a set with its last device the least time.

        Of divisions that take the same time, it is the one that gives later devices more layers.
        """
        devices, counts, stop = [last], list[int](), self._end
        for level in reversed(levels):
            chosen ^= self._masks[last]
            span, is_last = self._problem.spans[last], not counts
            starts = [
                s for s in range(1, stop) if span.holds(range(s, stop), first=False, last=is_last)
            ]
            least = level.least[:, starts, np.searchsorted(level.sets, chosen)]  # (N, starts)
            least = least + self._hop_ms[:, last, None] - self._ms[last, starts]
            at = int(np.flatnonzero(least.min(axis=0) <= least.min() + TIE_MS)[0])
            counts.append(stop - starts[at])
            last, stop = int(least[:, at].argmin()), starts[at]
            devices.append(last)
        return tuple(reversed(devices)), tuple(reversed([*counts, stop]))

    def _offer(self, devices: tuple[int, ...], counts: tuple[int, ...]) -> None:
        ms = route_cost_ms(self._problem, devices, counts)
        fewer = self.route is not None and len(devices) < len(self.route.devices)
        if ms < self._best_ms - TIE_MS or (fewer and ms <= self._best_ms + TIE_MS):
            self.route = Route(devices=devices, counts=counts, ms=ms)

    def _allowed(self, sets: Sets) -> NDArray[np.bool_]:
        """For each set, whether it has enough workers and all required devices."""
        problem = self._problem
        taking_part = np.zeros_like(sets)
        for worker in {worker for worker in problem.workers if worker.bit_count() == 1}:
            own = 0
            for other, mask in zip(problem.workers, self._masks, strict=True):
                own |= mask if other == worker else 0
            taking_part += sets & own != 0
        required = 0
        for i in problem.required:
            required |= self._masks[i]
        return (taking_part >= problem.min_workers) & (sets & required == required)


def _width(size: int) -> int:
    """How many sets of one size are followed. More devices get fewer sets, to limit the memory."""
    most = comb(EXACT_DEVICES, EXACT_DEVICES // 2)
    if size <= EXACT_DEVICES:
        return most
    return max(_FIRST_WIDTH, most * EXACT_DEVICES**2 // size**2)


class _Extension:
    """For one device: the minimum over all starts of its range, for every stop at once.

    The starts from which the device reaches a stop are a window, since a later start never reaches
    less far. The minimum of a window is the minimum of two overlapping windows whose length is a
    power of two (a sparse table).
    """

    def __init__(self, span: Span) -> None:
        self._ms: Times = np.array(span.ms[1:])[:, None]
        stops = np.arange(1, len(span.ms))
        starts = np.array([max(1, bisect_left(span.reach, stop)) for stop in stops])
        self._none = starts >= stops  # no range ends here
        self._first = np.minimum(starts, span.num_layers - 1)
        lengths = np.maximum(stops - starts, 1)
        self._power = np.floor(np.log2(lengths)).astype(np.int64)
        self._second = np.maximum(stops - (1 << self._power), 0)

    def __call__(self, arrivals: Times) -> Times:
        """Turn times at the starts into times at the stops; both are (L + 1, S).

        The times at the starts must have the device's own time up to that start subtracted.
        """
        tables = [arrivals[:-1]]
        for power in range(int(self._power.max())):
            table, half = tables[-1].copy(), 1 << power
            np.minimum(table[:-half], table[half:], out=table[:-half])
            tables.append(table)
        table = np.stack(tables)  # (powers, L, S)
        ways = np.full_like(arrivals, inf)
        np.minimum(table[self._power, self._first], table[self._power, self._second], out=ways[1:])
        ways[1:] += self._ms
        ways[1:][self._none] = inf
        return ways
