"""Decide which devices compute which layers, and in which order.

`make_plan` is the planner's main function. It takes the best route from `potluck.plan.search`, or
the layers given by hand, and explains the plan in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise

from potluck.errors import NotEnoughMemoryError, PlanError, UsageError
from potluck.ids import NodeId
from potluck.plan import byhand
from potluck.plan.cost import (
    DeviceCost,
    Links,
    ModelShape,
    Sums,
    cabled,
    check_measurements,
    hop_between,
)
from potluck.plan.explanation import Alone, Decision, explain
from potluck.plan.fitting import missing_memory
from potluck.plan.groups import (
    RankGroup,
    Tried,
    group_of,
    weigh_groups,
    with_groups,
)
from potluck.plan.labels import computer_names, joined, labels
from potluck.plan.preferences import Preferences
from potluck.plan.problems import at_once, make_problem
from potluck.plan.route import Problem, Route, route_cost_ms
from potluck.plan.search import Stop, best_including, best_route, fits, never
from potluck.plan.stages import Plan, StagePlan, stages_of
from potluck.plan.throughput import best_shared, period_ms

RANKS_GAIN = 0.1  # of a token's time; how sums and computing meet is predicted, and nobody has tried this group


def make_plan(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    *,
    sums: Sums | None = None,
    layers: Sequence[tuple[str, int]] | None = None,
    min_workers: int = 0,
    users: int = 1,
    measured_tokens: int = 256,
    near: Sequence[StagePlan] = (),
    stop: Stop = never,
) -> Plan:
    """Choose the stages for a model.

    Args:
        shape: the model in the scheme and for the context that it is to run with.
        devices: every device that may be used; the first one is the master's. The driver runs on
            the master, which need not compute.
        links: the measured links. An unknown link counts as a poor Wi-Fi.
        sums: the measured ones. Others are estimated from their link.
        layers: the user's choice: computers and their numbers of layers, in this order. Nothing is
            optimised then.
        min_workers: at least so many computers other than the master take part.
        users: how many are answered at once. One user gets the route on which a token is fastest,
            several the one on which they get the most tokens together.
        measured_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        near: the stages of the plan before. Of plans that are nearly equally fast, the one that
            moves fewer of their layers is chosen: answers wait while layers are loaded.
        stop: called often; once it returns True, the best plan so far is returned.

    Raises:
        NotEnoughMemoryError: the model does not fit, or a share in `layers` does not.
        InvalidLayersError: `layers` names an unknown computer or does not add up.
        UsageError: too few computers or layers for `min_workers`, or impossible figures.
    """
    if not devices:
        raise UsageError("There is no computer to plan for.")
    home = _Home(
        shape=shape,
        devices=tuple(devices),
        links=links,
        sums=sums or {},
        measured_tokens=measured_tokens,
        min_workers=min_workers,
        stop=stop,
    )
    check_measurements(shape, home.devices, links, home.sums)
    singles = home.problem()
    _check_workers(singles)
    preferences = Preferences(
        shape=shape, devices=home.devices, near=near, measured_tokens=measured_tokens, stop=stop
    )
    names = labels(home.devices)
    fastest = _Fastest(preferences.best(singles))
    if layers is None:
        fastest = _weigh_groups(home, preferences, fastest, singles)
        if fastest.route is None:
            raise _why_infeasible(home, names, singles)
        route = _preferred(home, preferences, fastest, fastest.route, users)
    else:
        members = byhand.find_groups(home.devices, names, layers)
        fastest = replace(fastest, groups=tuple(home.group(each) for each in members))
        problem = home.problem(fastest.groups)
        route = byhand.follow(shape, home.devices, names, problem, layers, fastest.groups)
        bound = min(route.ms, fastest.route.bound_ms) if fastest.route else 0.0
        route = replace(route, bound_ms=bound)
    decision = _decide(home, names, fastest, route, users)
    decision = replace(decision, by_hand=layers is not None, stays=bool(near))
    return _plan(home, decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    """What is planned for: a model, the devices, and what was measured of them. As in `make_plan`."""

    shape: ModelShape
    devices: tuple[DeviceCost, ...]
    links: Links
    sums: Sums
    measured_tokens: int
    min_workers: int
    stop: Stop

    def problem(self, groups: Sequence[RankGroup] = ()) -> Problem:
        """The search's input; `groups` are the last devices of it."""
        made = make_problem(self.shape, self.devices, self.links, self.min_workers)
        return with_groups(made, groups)

    def group(self, members: Sequence[int]) -> RankGroup:
        """The rank group of these devices."""
        return group_of(
            self.shape,
            self.devices,
            self.links,
            members,
            sums=self.sums,
            prefill_tokens=self.measured_tokens,
        )

    def weighed_groups(self) -> tuple[tuple[RankGroup, ...], Tried | None]:
        """As `weigh_groups`."""
        return weigh_groups(
            self.shape,
            self.devices,
            self.links,
            sums=self.sums,
            prefill_tokens=self.measured_tokens,
        )

    def at_once(self, groups: Sequence[RankGroup], tokens: int) -> Problem:
        """The problem of so many tokens that go through the layers together."""
        several = at_once(self.shape, self.devices, tokens, self.measured_tokens)
        made = make_problem(self.shape, several, self.links, self.min_workers, tokens=tokens)
        again = [
            group_of(
                self.shape,
                several,
                self.links,
                group.members,
                sums=self.sums,
                prefill_tokens=self.measured_tokens,
                shares=group.shares,
                tokens=tokens,
            )
            for group in groups
        ]
        return with_groups(made, again)

    def cabled(self, groups: Sequence[RankGroup]) -> Problem | None:
        """The problem with cables for the computers that are on Wi-Fi; None: there are none."""
        on_wifi = {device.node for device in self.devices if device.on_wifi}
        if not on_wifi:
            return None
        return with_groups(
            make_problem(self.shape, self.devices, cabled(self.links, on_wifi)), groups
        )


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest route for a token (None: nothing fits), the groups in it, and why another one is not."""

    route: Route | None
    groups: tuple[RankGroup, ...] = ()
    untaken: Tried | None = None


def _weigh_groups(
    home: _Home, preferences: Preferences, single: _Fastest, singles: Problem
) -> _Fastest:
    """`single`, the fastest route of single devices, or one with rank groups that is worth it."""
    groups, tried = home.weighed_groups()
    grouped = with_groups(singles, groups)
    ranked = preferences.best(grouped, groups) if groups else None
    if ranked is not None and _is_worth_it(ranked, single.route, preferences.near):
        return _Fastest(*_with_used(ranked, groups, len(home.devices)))
    if tried is None or single.route is None:
        return single
    untaken = _why_untaken(tried, grouped, groups, single.route, home.stop)
    return replace(single, untaken=untaken)


def _preferred(
    home: _Home, preferences: Preferences, fastest: _Fastest, route: Route, users: int
) -> Route:
    """The route for so many users, or for pictures; `route`, the fastest one, where neither asks for another."""
    problem = home.problem(fastest.groups)

    @cache
    def at_home_of(tokens: int) -> Problem:
        several = home.at_once(fastest.groups, tokens)
        return preferences.with_tables_at_home(several, fastest.groups)

    shared = best_shared(at_home_of, users, home.stop) if users > 1 else None
    if shared is not None:
        return _for_one(problem, shared, route)
    return preferences.for_pictures(problem, fastest.groups, route)


def _decide(
    home: _Home, names: tuple[str, ...], fastest: _Fastest, route: Route, users: int
) -> Decision:
    """What was decided, and the other ways that it is compared with."""
    groups = fastest.groups
    problem_of = cache(partial(home.at_once, groups))
    return Decision(
        shape=home.shape,
        devices=(*home.devices, *(group.cost for group in groups)),
        names=(*names, *(joined(names, group) for group in groups)),
        problem=home.problem(groups),
        route=route,
        best=fastest.route,
        groups=groups,
        untaken=fastest.untaken,
        chunk_tokens=home.measured_tokens,
        alone=_alone(home),
        users=users,
        users_tokens_per_s=users * _rate(period_ms(problem_of, users, route)),
        cabled=home.cabled(groups),
        stop=home.stop,
    )


def _plan(home: _Home, decision: Decision) -> Plan:
    route, master = decision.route, home.devices[0].node
    nodes = [master, *(decision.devices[i].node for i in route.devices), master]
    return Plan(
        stages=stages_of(home.shape, home.devices, decision.groups, route),
        hops=tuple(hop_between(home.links, a, b) for a, b in pairwise(nodes)),
        token_ms=route.ms,
        predicted_tokens_per_s=_rate(route.ms),
        users=decision.users,
        users_tokens_per_s=decision.users_tokens_per_s,
        alone={each.node: each.tokens_per_s for each in decision.alone},
        lower_bound_ms=route.bound_ms,
        optimal=route.is_optimal,
        explanation=explain(decision),
    )


def _is_worth_it(ranked: Route, best: Route | None, near: Sequence[StagePlan]) -> bool:
    """Whether to take a route with rank groups: they are to gain more than predictions of them are wrong by.

    Those of the plan before stay while they gain anything.
    """
    gain = 0.0 if any(stage.is_ranked for stage in near) else RANKS_GAIN
    return best is None or ranked.ms < (1 - gain) * best.ms


def _why_untaken(
    tried: Tried, problem: Problem, groups: Sequence[RankGroup], best: Route, stop: Stop
) -> Tried:
    """What speaks against a group that `best` was preferred to. `groups` are the last devices of `problem`."""
    if tried.against is not None:
        return tried
    number = problem.size - len(groups) + groups.index(tried.group)
    if (other := best_including(problem, best, number, stop)) is None:
        return replace(tried, against="room")
    return replace(tried, against="gain" if other.ms < best.ms else "slower", token_ms=other.ms)


def _with_used(
    route: Route, groups: Sequence[RankGroup], singles: int
) -> tuple[Route, tuple[RankGroup, ...]]:
    """The route, with the groups that take part alone, which are numbered anew."""
    used = [i for i in route.devices if i >= singles]
    numbers = {i: singles + k for k, i in enumerate(used)}
    devices = tuple(numbers.get(i, i) for i in route.devices)
    return replace(route, devices=devices), tuple(groups[i - singles] for i in used)


def _for_one(problem: Problem, shared: Route, best: Route) -> Route:
    """A route for several users, with the times of one. `best` is the fastest for one."""
    ms = route_cost_ms(problem, shared.devices, shared.counts)
    return replace(shared, ms=ms, bound_ms=min(ms, best.bound_ms))


def _alone(home: _Home) -> tuple[Alone, ...]:
    """The speed of each computer without the others, while the driver still runs on the master."""
    shape, devices, stop = home.shape, home.devices, home.stop
    problem = make_problem(
        shape, [replace(device, is_apart=False) for device in devices], home.links
    )
    result: list[Alone] = []
    devices_of: dict[NodeId, list[int]] = {}
    for i, device in enumerate(devices):
        devices_of.setdefault(device.node, []).append(i)
    names = computer_names(devices)
    for node, own in devices_of.items():
        name = names[node]
        alone = problem.only(own)
        if route := best_route(alone, stop):
            result.append(Alone(node=node, name=name, tokens_per_s=_rate(route.ms)))
            continue
        if len(own) == 1:  # its only device would need that much more memory
            lacking = shape.model_memory - devices[own[0]].memory
        else:
            lacking = missing_memory(shape, alone, stop)
        result.append(Alone(node=node, name=name, tokens_per_s=None, missing=lacking))
    return tuple(result)


def _rate(ms: float) -> float:
    return 1000 / max(ms, 1e-6)  # in tests all times may be 0


def _check_workers(problem: Problem) -> None:
    wanted, there = problem.min_workers, len(set(problem.workers) - {0})
    if wanted > there:
        raise UsageError(
            f"{wanted} other computers were to take part, and {there} can be used now."
            " Wait for more, or ask for fewer.",
            wanted=wanted,
            available=there,
        )
    if wanted > problem.num_layers:
        raise UsageError(
            f"The model has {problem.num_layers} layers, so no more than that many computers can"
            f" share it, and {wanted} were to take part. Ask for fewer.",
            wanted=wanted,
            num_layers=problem.num_layers,
        )


def _why_infeasible(
    home: _Home, names: tuple[str, ...], problem: Problem
) -> PlanError | UsageError:
    shape, stop = home.shape, home.stop
    anyhow = replace(problem, min_workers=0)
    if not fits(anyhow, stop):
        lacking = missing_memory(shape, anyhow, stop)
        return NotEnoughMemoryError(shape.model_memory, shape.model_memory - lacking)
    for i, (device, span) in enumerate(zip(home.devices, problem.spans, strict=True)):
        if problem.workers[i] and span.most_layers < 1:
            return NotEnoughMemoryError(shape.smallest_layer_memory, device.memory, names[i])
    return UsageError(
        f"The model fits, but not so that {problem.min_workers} other computers take part."
        " Ask for fewer, or lend more of their memory.",
        wanted=problem.min_workers,
    )
