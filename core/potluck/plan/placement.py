"""Decide who computes what: which computers, in which order, how many layers, and where the ends live.

`make_plan` is the planner's one entry. It asks `potluck.plan.search` for the best route, or follows
the layers given by hand, and says why in words.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal, TypeAlias

from potluck.errors import NotEnoughMemoryError, PlanError, UsageError
from potluck.ids import NodeId, short
from potluck.plan import byhand
from potluck.plan.cost import (
    TOKEN_MESSAGE_BYTES,
    Hop,
    Links,
    ModelShape,
    Seat,
    check_measurements,
    hop_between,
)
from potluck.plan.explanation import Alone, Decision, explain
from potluck.plan.partition import room_of
from potluck.plan.route import Problem, Route, lower_bound_ms, ranges, slowest_ms
from potluck.plan.search import best_route, best_slowest, fits, missing
from potluck.plan.spans import span_of

Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A contiguous range of layers on one device."""

    node: NodeId
    name: str
    device: str
    layers: range
    embedding: bool
    head: bool
    predicted_ms: float  # one token, the head included where it is
    head_ms: float  # its part of that; 0 where the head is elsewhere
    prefill_ms: float  # one whole chunk of prefill, without the head
    memory: int  # weights and KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages in the order in which a token visits them, and what to expect of them."""

    stages: tuple[Stage, ...]
    hops: tuple[Hop, ...]  # master to first, between the stages, last to master
    token_ms: float  # one user's next token
    slowest_ms: float  # the stage that bounds many users together
    predicted_tokens_per_s: float  # of one user
    alone: Mapping[NodeId, float | None]  # the same with one computer only; None: does not fit
    lower_bound_ms: float  # no plan for these computers is faster for one token
    optimal: bool  # proven; False for layers given by hand and beyond `search.EXACT_SEATS`
    explanation: str  # lines for a person


def make_plan(
    shape: ModelShape,
    seats: Sequence[Seat],
    links: Links,
    *,
    layers: Sequence[tuple[str, int]] | None = None,
    min_workers: int = 0,
    objective: Objective = "latency",
) -> Plan:
    """Choose the stages for a model.

    Args:
        shape: the model in the scheme and for the context that it is to run with.
        seats: every device that may be used, one of the master's first. The driver of the
            generation runs on the master; it need not compute.
        links: measured from computer to computer. An unknown one counts as a poor Wi-Fi.
        layers: given by hand: computers and their layers, in this order; nothing is optimised.
        min_workers: at least so many computers other than the master take part.
        objective: "latency" for one user's next token; "throughput" for many users at once.

    Raises:
        NotEnoughMemoryError: the model does not fit, or a computer's share of it by hand.
        InvalidLayersError: `layers` names an unknown computer or does not add up.
        UsageError: too few computers or layers for `min_workers`, or figures that cannot be.
    """
    seats = tuple(seats)
    if not seats:
        raise UsageError("There is no computer to plan for.")
    check_measurements(shape, seats, links)
    problem = make_problem(shape, seats, links, min_workers)
    names = labels(seats)
    _check_workers(problem)
    solve = best_route if objective == "latency" else best_slowest
    best = solve(problem)
    if layers is not None:
        route = byhand.follow(shape, seats, names, problem, layers)
    elif best is not None:
        route = best
    else:
        raise _why_infeasible(shape, seats, names, problem)
    alone = _alone(shape, seats, problem)
    decision = Decision(
        shape=shape,
        seats=seats,
        names=names,
        problem=problem,
        route=route,
        best=best,
        by_hand=layers is not None,
        throughput=objective == "throughput",
        alone=tuple(alone.values()),
    )
    route_nodes = [seats[0].node, *(seats[i].node for i in route.seats), seats[0].node]
    return Plan(
        stages=_stages(shape, seats, route),
        hops=tuple(hop_between(links, a, b) for a, b in pairwise(route_nodes)),
        token_ms=route.ms,
        slowest_ms=slowest_ms(problem, route),
        predicted_tokens_per_s=_rate(route.ms),
        alone={node: a.tokens_per_s for node, a in alone.items()},
        lower_bound_ms=min(route.ms, lower_bound_ms(problem)),
        optimal=route.exact,
        explanation=explain(decision),
    )


def lacking_memory(shape: ModelShape, seats: Sequence[Seat]) -> int:
    """Bytes that are missing for the model, however it is shared out; 0: it fits, as `fits` knows.

    What the seats' times are makes no difference.
    """
    problem = make_problem(shape, seats, {})
    return 0 if fits(problem) else missing(shape, problem)


def labels(seats: Sequence[Seat]) -> tuple[str, ...]:
    """A name for each device that no other has: the computer's, and more only where it must be."""
    nodes_of = {seat.name: {s.node for s in seats if s.name == seat.name} for seat in seats}
    devices_of = Counter(seat.node for seat in seats)

    def label(seat: Seat) -> str:
        name = seat.name
        if len(nodes_of[seat.name]) > 1:
            name += f" ({short(seat.node)})"
        return f"{name}/{seat.device}" if devices_of[seat.node] > 1 else name

    return tuple(label(seat) for seat in seats)


def computer_names(seats: Iterable[Seat]) -> dict[NodeId, str]:
    """A name for each computer that no other has."""
    one_of_each = tuple({seat.node: seat for seat in seats}.values())
    return {seat.node: name for seat, name in zip(one_of_each, labels(one_of_each), strict=True)}


def make_problem(
    shape: ModelShape, seats: Sequence[Seat], links: Links, min_workers: int = 0
) -> Problem:
    """The planner's question in numbers, counting layers where they are equal."""
    master = seats[0].node
    bits = {
        node: 1 << k
        for k, node in enumerate(dict.fromkeys(s.node for s in seats if s.node != master))
    }

    def ms(source: NodeId, target: NodeId, nbytes: int) -> float:
        return hop_between(links, source, target).ms(nbytes)

    spans = None
    if not _layers_are_equal(shape, seats):
        spans = tuple(span_of(shape, seat.decode_ms, seat.memory) for seat in seats)
    return Problem(
        num_layers=shape.num_layers,
        layer_ms=tuple(fmean(seat.decode_ms[kind] for kind in shape.layers) for seat in seats),
        head_ms=tuple(seat.head_ms for seat in seats),
        rooms=tuple(span.room for span in spans)
        if spans
        else tuple(room_of(shape, seat.memory) for seat in seats),
        spans=spans,
        enter_ms=tuple(ms(master, seat.node, TOKEN_MESSAGE_BYTES) for seat in seats),
        leave_ms=tuple(ms(seat.node, master, TOKEN_MESSAGE_BYTES) for seat in seats),
        hop_ms=tuple(tuple(ms(a.node, b.node, shape.hidden_bytes) for b in seats) for a in seats),
        workers=tuple(bits.get(seat.node, 0) for seat in seats),
        min_workers=min_workers,
    )


def _layers_are_equal(shape: ModelShape, seats: Sequence[Seat]) -> bool:
    """Whether counting layers is enough: it is much faster, and most models are so."""
    sizes, kinds = shape.layer_memory, set(shape.layers)
    figures = [sizes, *(seat.decode_ms for seat in seats)]
    return all(len({of_kind[kind] for kind in kinds}) == 1 for of_kind in figures)


def _stages(shape: ModelShape, seats: tuple[Seat, ...], route: Route) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for k, (i, own) in enumerate(zip(route.seats, ranges(route.counts), strict=True)):
        seat, first, last = seats[i], k == 0, k == len(route.seats) - 1
        head_ms = seat.head_ms if last else 0.0
        kinds = shape.layers[own.start : own.stop]
        stages.append(
            Stage(
                node=seat.node,
                name=seat.name,
                device=seat.device,
                layers=own,
                embedding=first,
                head=last,
                predicted_ms=sum(seat.decode_ms[kind] for kind in kinds) + head_ms,
                head_ms=head_ms,
                prefill_ms=sum(seat.prefill_ms[kind] for kind in kinds),
                memory=shape.stage_memory(own, first=first, last=last),
            )
        )
    return tuple(stages)


def _alone(shape: ModelShape, seats: tuple[Seat, ...], problem: Problem) -> dict[NodeId, Alone]:
    """What each computer would do without the others, the chat still being on the master."""
    result: dict[NodeId, Alone] = {}
    devices: dict[NodeId, list[int]] = {}
    for i, seat in enumerate(seats):
        devices.setdefault(seat.node, []).append(i)
    names = computer_names(seats)
    for node, own in devices.items():
        name = names[node]
        alone = replace(problem.only(own), min_workers=0)
        if route := best_route(alone):
            result[node] = Alone(name=name, tokens_per_s=_rate(route.ms))
            continue
        if len(own) == 1:  # its one device would have to grow
            lacking = shape.model_memory - seats[own[0]].memory
        else:
            lacking = missing(shape, alone)
        result[node] = Alone(name=name, tokens_per_s=None, missing=lacking)
    return result


def _rate(ms: float) -> float:
    return 1000 / max(ms, 1e-6)  # a test may measure nothing at all


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
    shape: ModelShape, seats: tuple[Seat, ...], names: tuple[str, ...], problem: Problem
) -> PlanError | UsageError:
    anyhow = replace(problem, min_workers=0)
    if not fits(anyhow):
        lacking = missing(shape, anyhow)
        return NotEnoughMemoryError(shape.model_memory, shape.model_memory - lacking)
    for i, (seat, room) in enumerate(zip(seats, problem.rooms, strict=True)):
        if problem.workers[i] and room.middle < 1:
            return NotEnoughMemoryError(shape.smallest_layer_memory, seat.memory, names[i])
    return UsageError(
        f"The model fits, but not so that {problem.min_workers} other computers take part."
        " Ask for fewer, or lend more of their memory.",
        wanted=problem.min_workers,
    )
