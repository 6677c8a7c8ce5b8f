"""What a plan prefers beside the time of a token: layers that need not move, tables at home, and pictures read fast.

Each is a search in a problem with other times. The time of what is found, and the bound on it, are always those of the
problem itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.groups import RankGroup
from potluck.plan.route import TIE_MS, Problem, Route, route_cost_ms
from potluck.plan.search import Stop, best_route
from potluck.plan.stages import StagePlan

MOVED = 0.05  # of the time of a layer; measurements differ by more from minute to minute
# Of the time of a layer with a table on the disk, on a computer that would have to be sent it: 100 GB take a quarter of an
# hour at 1 Gbit/s.
SENT = 100.0
PICTURES = 1 / 1000  # for each token of an answer, of models that see
PICTURES_COST = 0.02  # of a token's time, at most, that pictures are read sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What routes are compared by beside their time.

    Attributes:
        shape: the sizes of the model.
        devices: all devices.
        near: the stages of the plan before.
        measured_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        stop: once it returns True, searches end with the best so far.
    """

    shape: ModelShape
    devices: Sequence[DeviceCost]
    near: Sequence[StagePlan]
    measured_tokens: int
    stop: Stop

    def best(self, problem: Problem, groups: Sequence[RankGroup] = ()) -> Route | None:
        """The fastest route for tokens, if each layer that moves costs `MOVED` of its time more, with tables at home.

        `groups` are the last devices of `problem`.
        """
        if (fastest := best_route(problem, self.stop)) is None:
            return None
        preferred = self.with_tables_at_home(self._staying(problem, groups), groups)
        found = None if preferred is problem else best_route(preferred, self.stop)
        routes = (fastest,) if found is None else (found, fastest)  # a search may have been stopped
        route = min(routes, key=lambda way: route_cost_ms(preferred, way.devices, way.counts))
        return _timed(problem, route, fastest.bound_ms)

    def for_pictures(self, problem: Problem, groups: Sequence[RankGroup], best: Route) -> Route:
        """A route that reads pictures sooner; if there is none, `best`.

        The first device reads the pictures. It may cost a token `PICTURES_COST` to have another one of the same computers
        first, and nothing to have other computers, of which there are no more.
        """
        if not self.shape.picture_tokens or len(self.devices) == 1:
            return best
        parts = self._parts(groups)
        used = self._computers(best, parts)
        weighed = self.with_tables_at_home(self._staying(problem, groups), groups)
        enter_ms = tuple(
            ms + PICTURES * max(self.shape.picture_ms(d, self.measured_tokens) for d in some)
            for ms, some in zip(problem.enter_ms, parts, strict=True)
        )
        weighed = replace(weighed, enter_ms=enter_ms)
        same = [i for i, some in enumerate(parts) if used.issuperset(d.node for d in some)]
        for own, cost in ((range(problem.size), 0.0), (same, PICTURES_COST)):
            if (found := best_route(weighed.only(own), self.stop)) is None:
                continue
            found = replace(found, devices=tuple(own[i] for i in found.devices))
            found = _timed(problem, found, best.bound_ms)
            is_cheap = found.ms <= (1 + cost) * best.ms + TIE_MS
            if is_cheap and len(self._computers(found, parts)) <= len(used):
                return found
        return best

    def with_tables_at_home(self, problem: Problem, groups: Sequence[RankGroup] = ()) -> Problem:
        """The same, but layers whose table would have to be sent count as slower by `SENT`.

        The master's computer has the files, and one that has had such a layer its table.
        """
        shape = self.shape
        if not shape.has_tables:
            return problem
        having = (stage.node for stage in self.near if shape.tables(stage.layers))
        homes = {self.devices[0].node, *having}
        others = [layer for layer in range(shape.num_layers) if not shape.tables((layer,))]
        spans = tuple(
            span
            if homes.issuperset(device.node for device in some)
            else span.slower_but_in(others, SENT)
            for span, some in zip(problem.spans, self._parts(groups), strict=True)
        )
        return replace(problem, spans=spans)

    def _staying(self, problem: Problem, groups: Sequence[RankGroup]) -> Problem:
        """The same, but each layer that moves costs `MOVED` of its time more."""
        held: dict[tuple[tuple[NodeId, str], ...], range] = {}
        for k, stage in enumerate(self.near):
            ranks = self.near[: k + 1][-1 - stage.rank :]
            held.pop(tuple((s.node, s.device) for s in ranks[:-1]), None)
            held[tuple((s.node, s.device) for s in ranks)] = stage.layers
        if not held:
            return problem
        spans = tuple(
            span.slower_but_in(held.get(tuple((d.node, d.device) for d in some), range(0)), MOVED)
            for span, some in zip(problem.spans, self._parts(groups), strict=True)
        )
        return replace(problem, spans=spans)

    def _computers(self, route: Route, parts: Sequence[Sequence[DeviceCost]]) -> set[NodeId]:
        return {device.node for i in route.devices for device in parts[i]}

    def _parts(self, groups: Sequence[RankGroup]) -> list[list[DeviceCost]]:
        """What each device of a problem is made of."""
        devices = self.devices
        return [*([one] for one in devices), *([devices[i] for i in g.members] for g in groups)]


def _timed(problem: Problem, route: Route, bound_ms: float) -> Route:
    """The route with its time in this problem, of which the bound is."""
    ms = route_cost_ms(problem, route.devices, route.counts)
    return replace(route, ms=ms, bound_ms=min(ms, bound_ms))
