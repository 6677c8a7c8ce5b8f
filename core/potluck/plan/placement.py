"""Decide which devices compute which layers, and in which order.

`make_plan` is the planner's main function. It takes the best route from `potluck.plan.search`, or
the layers given by hand, and explains the plan in words.
"""

from collections.abc import Sequence
from dataclasses import replace
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
    memory_of,
    weigh_groups,
    with_groups,
)
from potluck.plan.labels import computer_names, joined, labels
from potluck.plan.preferences import Preferences
from potluck.plan.problems import at_once, make_problem
from potluck.plan.route import Problem, Route, ranges, route_cost_ms
from potluck.plan.search import Stop, best_including, best_route, fits, never
from potluck.plan.stages import Plan, StagePlan
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
    devices = tuple(devices)
    if not devices:
        raise UsageError("There is no computer to plan for.")
    sums = sums or {}
    check_measurements(shape, devices, links, sums)
    problem = make_problem(shape, devices, links, min_workers)
    names = labels(devices)
    _check_workers(problem)

    alone = _alone(shape, devices, links, stop)
    singles, groups, untaken = problem, tuple[RankGroup, ...](), None
    preferences = Preferences(
        shape=shape, devices=devices, near=near, measured_tokens=measured_tokens, stop=stop
    )
    best = preferences.best(problem)
    if layers is None:
        groups, tried = weigh_groups(
            shape, devices, links, sums=sums, prefill_tokens=measured_tokens
        )
        grouped = with_groups(problem, groups)
        ranked = preferences.best(grouped, groups) if groups else None
        if ranked is not None and _is_worth_it(ranked, best, near):
            ranked, groups = _with_used(ranked, groups, len(devices))
            best = ranked
        else:
            untaken = tried and best and _why_untaken(tried, grouped, groups, best, stop)
            groups = ()
    else:
        groups = tuple(
            group_of(shape, devices, links, members, sums=sums, prefill_tokens=measured_tokens)
            for members in byhand.find_groups(devices, names, layers)
        )
    problem = with_groups(singles, groups)

    @cache
    def problem_of(tokens: int) -> Problem:
        several = at_once(shape, devices, tokens, measured_tokens)
        made = make_problem(shape, several, links, min_workers, tokens=tokens)
        group_at_once = partial(
            group_of,
            shape,
            several,
            links,
            sums=sums,
            prefill_tokens=measured_tokens,
            tokens=tokens,
        )
        return with_groups(made, [group_at_once(g.members, shares=g.shares) for g in groups])

    def at_home_of(tokens: int) -> Problem:
        return preferences.with_tables_at_home(problem_of(tokens), groups)

    if layers is not None:
        route = byhand.follow(shape, devices, names, problem, layers, groups)
        route = replace(route, bound_ms=min(route.ms, best.bound_ms) if best else 0.0)
    elif best is not None:
        shared = best_shared(at_home_of, users, stop) if users > 1 else None
        if shared is not None:
            route = _for_one(problem, shared, best)
        else:
            route = preferences.for_pictures(problem, groups, best)
    else:
        raise _why_infeasible(shape, devices, names, singles, stop)
    users_per_s = users * _rate(period_ms(problem_of, users, route))
    together = (*devices, *(group.cost for group in groups))
    decision = Decision(
        shape=shape,
        devices=together,
        names=(*names, *(joined(names, group) for group in groups)),
        problem=problem,
        route=route,
        best=best,
        groups=groups,
        untaken=untaken,
        stays=bool(near),
        chunk_tokens=measured_tokens,
        by_hand=layers is not None,
        alone=tuple(alone.values()),
        users=users,
        users_tokens_per_s=users_per_s,
        cabled=_cabled(shape, devices, links, groups),
        stop=stop,
    )
    route_nodes = [devices[0].node, *(together[i].node for i in route.devices), devices[0].node]
    return Plan(
        stages=_stages(shape, devices, groups, route),
        hops=tuple(hop_between(links, a, b) for a, b in pairwise(route_nodes)),
        token_ms=route.ms,
        predicted_tokens_per_s=_rate(route.ms),
        users=users,
        users_tokens_per_s=users_per_s,
        alone={node: a.tokens_per_s for node, a in alone.items()},
        lower_bound_ms=route.bound_ms,
        optimal=route.is_optimal,
        explanation=explain(decision),
    )


def _cabled(
    shape: ModelShape, devices: Sequence[DeviceCost], links: Links, groups: Sequence[RankGroup]
) -> Problem | None:
    """The problem with cables for the computers that are on Wi-Fi; None: there are none."""
    on_wifi = {device.node for device in devices if device.on_wifi}
    if not on_wifi:
        return None
    return with_groups(make_problem(shape, devices, cabled(links, on_wifi)), groups)


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


def _stages(
    shape: ModelShape,
    devices: tuple[DeviceCost, ...],
    groups: tuple[RankGroup, ...],
    route: Route,
) -> tuple[StagePlan, ...]:
    stages: list[StagePlan] = []
    for k, (i, own) in enumerate(zip(route.devices, ranges(route.counts), strict=True)):
        first, last = k == 0, k == len(route.devices) - 1
        if i < len(devices):
            memory = shape.stage_memory(own, first=first, last=last)
            stages.append(_stage(shape, devices[i], own, memory, first=first, last=last))
            continue
        group = groups[i - len(devices)]
        stage = _stage(shape, group.cost, own, 0, first=first, last=last)
        stages += [
            replace(
                stage,
                node=devices[member].node,
                name=devices[member].name,
                device=devices[member].device,
                head=last and rank == 0,
                memory=memory_of(shape, group, rank, own, first=first, last=last),
                rank=rank,
                shares=group.shares,
            )
            for rank, member in enumerate(group.members)
        ]
    return tuple(stages)


def _stage(
    shape: ModelShape, device: DeviceCost, own: range, memory: int, *, first: bool, last: bool
) -> StagePlan:
    head_ms = device.head_ms if last else 0.0
    kinds = shape.layers[own.start : own.stop]
    return StagePlan(
        node=device.node,
        name=device.name,
        device=device.device,
        layers=own,
        embedding=first,
        head=last,
        predicted_ms=sum(device.decode_ms[kind] for kind in kinds) + head_ms,
        head_ms=head_ms,
        prefill_ms=sum(device.prefill_ms[kind] for kind in kinds),
        token_read_ms=tuple(kinds.count(kind) * ms for kind, ms in enumerate(device.token_read_ms)),
        chunk_read_ms=tuple(kinds.count(kind) * ms for kind, ms in enumerate(device.chunk_read_ms)),
        memory=memory,
    )


def _alone(
    shape: ModelShape, devices: tuple[DeviceCost, ...], links: Links, stop: Stop
) -> dict[NodeId, Alone]:
    """The speed of each computer without the others, while the driver still runs on the master."""
    problem = make_problem(shape, [replace(device, is_apart=False) for device in devices], links)
    result: dict[NodeId, Alone] = {}
    devices_of: dict[NodeId, list[int]] = {}
    for i, device in enumerate(devices):
        devices_of.setdefault(device.node, []).append(i)
    names = computer_names(devices)
    for node, own in devices_of.items():
        name = names[node]
        alone = problem.only(own)
        if route := best_route(alone, stop):
            result[node] = Alone(node=node, name=name, tokens_per_s=_rate(route.ms))
            continue
        if len(own) == 1:  # its only device would need that much more memory
            lacking = shape.model_memory - devices[own[0]].memory
        else:
            lacking = missing_memory(shape, alone, stop)
        result[node] = Alone(node=node, name=name, tokens_per_s=None, missing=lacking)
    return result


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
    shape: ModelShape,
    devices: tuple[DeviceCost, ...],
    names: tuple[str, ...],
    problem: Problem,
    stop: Stop,
) -> PlanError | UsageError:
    anyhow = replace(problem, min_workers=0)
    if not fits(anyhow, stop):
        lacking = missing_memory(shape, anyhow, stop)
        return NotEnoughMemoryError(shape.model_memory, shape.model_memory - lacking)
    for i, (device, span) in enumerate(zip(devices, problem.spans, strict=True)):
        if problem.workers[i] and span.most_layers < 1:
            return NotEnoughMemoryError(shape.smallest_layer_memory, device.memory, names[i])
    return UsageError(
        f"The model fits, but not so that {problem.min_workers} other computers take part."
        " Ask for fewer, or lend more of their memory.",
        wanted=problem.min_workers,
    )
