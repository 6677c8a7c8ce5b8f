"""Find the fastest route: which devices take part, in which order, and which layers each has.

`least[set, last, n]` is the least time in which a set of devices, of which `last` is the last, has
computed the first n layers of a token. One device more gives

    least[set + next, next, n] = min over (last, start) of
        least[set, last, start] + hop(last, next) + time(next, start … n)

with `start` bounded by the memory of `next`: Held and Karp (1962) with layers beside the tour. The
sets are followed size by size. At each size only the most promising ones are kept, by the lower bound
of `potluck.plan.bound`; up to `EXACT_DEVICES` all of them are kept that may still lead to the best
route. A set that is given up takes its bound with it: no route is faster than the least of them, and
`Route.bound_ms` says so. Memory and time grow with the square and the cube of the number of devices.
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

EXACT_DEVICES = 12  # 4,095 sets, a tenth of a second; a home seldom has more
_MOST_DEVICES = 60  # sets are bits of an int64
_FIRST_WIDTH = 16  # sets of each size in a first search, which is always finished

Times: TypeAlias = NDArray[np.float64]
Sets: TypeAlias = NDArray[np.int64]  # of devices, as bits
Stop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """Do not stop a search before its end."""
    return False


def best_route(problem: Problem, stop: Stop = never) -> Route | None:
    """The fastest route for one token.

    Args:
        problem: the question.
        stop: asked again and again; when it says True, the best route so far is the answer.

    Returns:
        None where no route fits; beyond `EXACT_DEVICES`, where none was found.
    """
    useful = [i for i in range(problem.size) if problem.spans[i].most_layers > 0]
    order = sorted(useful, key=lambda i: _canonical(problem, i))[:_MOST_DEVICES]
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


def fits(problem: Problem, stop: Stop = never) -> bool:
    """Whether there is a route; beyond `EXACT_DEVICES`, whether one is found."""
    return best_route(_hops_only(problem), stop) is not None


def best_including(problem: Problem, route: Route, device: int, stop: Stop = never) -> Route | None:
    """The fastest route of these devices and one more, which must take part; others may drop out."""
    return best_route(problem.only([*route.devices, device], required=[device]), stop)


def _canonical(problem: Problem, i: int) -> tuple[object, ...]:
    """What devices are sorted by, so that the order in which they are given makes no difference."""
    span = problem.spans[i]
    ends = problem.head_ms[i], problem.enter_ms[i], problem.leave_ms[i]
    return i not in problem.required, span.ms[-1], span.reach, ends, sorted(problem.hop_ms[i])


def _frugal(problem: Problem, stop: Stop) -> Route | None:
    """A route of few devices, for where those that looked fastest have too little memory."""
    route = _Search(_hops_only(problem), stop).route
    return route and replace(route, ms=route_cost_ms(problem, route.devices, route.counts))


def _hops_only(problem: Problem) -> Problem:
    """The same question where only hops take time: the best route has the fewest devices."""
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
    """All sets of one size that are followed."""

    sets: Sets  # (S,) ascending
    least: Times  # (N, L + 1, S): by last device and number of layers; inf where there is no way


class _Search:
    """The recursion for one problem: narrow first, since a route lets a wide search leave out more."""

    def __init__(self, problem: Problem, stop: Stop) -> None:
        self.route: Route | None = None
        self._problem = problem
        self._end = problem.num_layers
        self._ms: Times = np.array([span.ms for span in problem.spans])  # (N, L + 1)
        self._hop_ms: Times = np.array(problem.hop_ms)  # (N, N)
        self._out_ms: Times = np.add(problem.head_ms, problem.leave_ms)
        self._extend = [_Extension(span) for span in problem.spans]
        self._rest = RestBound(problem)
        self.bound_ms = self._rest.whole_ms  # no route is faster
        self._run(_FIRST_WIDTH, never)
        self._run(_width(problem.size), stop)

    @property
    def is_proven(self) -> bool:
        """Whether the route is the fastest one, or there is none."""
        return self.bound_ms >= self._best_ms - TIE_MS

    @property
    def _best_ms(self) -> float:
        return self.route.ms if self.route else inf

    def _run(self, width: int, stop: Stop) -> None:
        """Follow at most `width` sets of each size."""
        levels = [self._singles()]
        given_up_ms = inf
        while levels[-1].sets.size and not self.is_proven:
            level, least_ms = self._promising(levels.pop(), 0 if stop() else width)
            given_up_ms = min(given_up_ms, least_ms)
            levels.append(level)
            levels.append(self._one_more(levels))
        self.bound_ms = max(self.bound_ms, min(given_up_ms, self._best_ms))

    def _singles(self) -> _Level:
        problem, n = self._problem, self._problem.size
        least = np.full((n, self._end + 1, n), inf)
        for i, span in enumerate(problem.spans):
            least[i, 1 : span.first + 1, i] = problem.enter_ms[i] + self._ms[i, 1 : span.first + 1]
            if span.only and self._allowed(np.array([1 << i]))[0]:
                self._offer((i,), (self._end,))
        return _Level(1 << np.arange(n, dtype=np.int64), least)

    def _promising(self, level: _Level, width: int) -> tuple[_Level, float]:
        """The sets with the least bounds, and the least bound of those that are given up.

        A set that cannot lead to a faster route is left out, and is not given up.
        """
        through_ms = (level.least + self._rest.of(level.sets)).min(axis=(0, 1))  # (S,)
        size = int(np.bitwise_count(level.sets[0]))
        is_shorter = self.route is not None and size < len(self.route.devices)
        kept = np.flatnonzero(through_ms < self._best_ms + (TIE_MS if is_shorter else -TIE_MS))
        given_up_ms = inf
        if kept.size > width:
            by_bound = kept[np.argsort(through_ms[kept], kind="stable")]
            given_up_ms = float(through_ms[by_bound[width]])
            kept = np.sort(by_bound[:width])
        return _Level(level.sets[kept], level.least[:, :, kept]), given_up_ms

    def _one_more(self, levels: Sequence[_Level]) -> _Level:
        """The sets with one device more; routes that end with it are offered."""
        level, n = levels[-1], self._problem.size
        found: list[tuple[int, Sets, Times]] = []
        for following in reversed(range(n)):  # of equally fast routes, one with the fastest first
            others = level.sets >> following & 1 == 0
            if not others.any():
                continue
            hop_ms = self._hop_ms[:, following, None, None]
            arrivals = (level.least[:, :, others] + hop_ms).min(axis=0)  # (L + 1, S)
            arrivals -= self._ms[following, :, None]
            wider = level.sets[others] | 1 << following
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
        """Offer the best route of these sets that ends with a device."""
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
        """The devices and layers of the least time of a set with its last device.

        Of divisions that take the same time, the one that gives later devices more layers.
        """
        devices, counts, stop = [last], list[int](), self._end
        for level in reversed(levels):
            chosen ^= 1 << last
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
        """Whether enough computers and all required devices are in a set."""
        problem = self._problem
        taking_part = np.zeros_like(sets)
        for worker in {worker for worker in problem.workers if worker}:
            own = sum(1 << i for i, other in enumerate(problem.workers) if other == worker)
            taking_part += sets & own != 0
        required = sum(1 << i for i in problem.required)
        return (taking_part >= problem.min_workers) & (sets & required == required)


def _width(size: int) -> int:
    """How many sets of one size are followed, so that more devices do not take more memory."""
    most = comb(EXACT_DEVICES, EXACT_DEVICES // 2)
    if size <= EXACT_DEVICES:
        return most
    return max(_FIRST_WIDTH, most * EXACT_DEVICES**2 // size**2)


class _Extension:
    """For one device the minimum over the starts of its range, for every stop at once.

    The starts from which the device reaches a stop are a window, since a later start never reaches
    less far. The minimum of a window is that of two of a power of two.
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
        """From the times at the starts (L + 1, S), less those before them, to times at the stops."""
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
