"""Hold a model several times, each time on computers of its own, so that more people are answered at once.

A replica is a complete plan. Which computers go to which one is chosen so that the rates of all together are the
greatest: of few computers all ways are compared, of more those that are one move or one exchange better than what
was found so far.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from potluck.errors import PlanError, UsageError
from potluck.ids import NodeId
from potluck.plan.apart import Answering
from potluck.plan.cost import DeviceCost
from potluck.plan.explanation import rate
from potluck.plan.search import Stop, never
from potluck.plan.stages import Plan

EXACT = 6  # computers of which all ways to share them out are compared: 63 plans
MOST_REPLICAS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The plans that hold the model, the fastest first.

    Attributes:
        plans: as many as were wanted, or as there is room for; no computer is in two.
        together: the plan with all computers for one replica.
    """

    plans: tuple[Plan, ...]
    together: Plan
    is_cut_short: bool = False  # whether the search was stopped: there may be room for more


def plan_replicas(
    devices: Sequence[DeviceCost], wanted: int, *, answering: Answering, stop: Stop = never
) -> Replicas:
    """Share the computers out among so many replicas, or as many as there is room for.

    Args:
        devices: all that may be used; the first one is the master's, where the driver runs for all replicas.
        wanted: replicas, at least 1.
        answering: makes the plan of these devices; those of other replicas are apart.
        stop: once it returns True, what was found so far is returned.

    Raises:
        PlanError, UsageError: not even one has room.
    """
    together = answering(devices, stop=stop)
    nodes = tuple(dict.fromkeys(device.node for device in devices))

    @cache
    def plan_of(own: frozenset[NodeId]) -> Plan | None:
        if len(own) == len(nodes):
            return together
        if stop():
            return None
        try:
            return answering(apart_from(devices, own), stop=stop)
        except (PlanError, UsageError):
            return None

    def rate_of(own: frozenset[NodeId]) -> float:
        plan = plan_of(own)
        return 0.0 if plan is None else plan.users_tokens_per_s

    memory = {
        node: sum(device.memory for device in devices if device.node == node) for node in nodes
    }
    best = [frozenset(nodes)]
    for count in range(2, min(wanted, len(nodes), MOST_REPLICAS) + 1):
        if len(nodes) <= EXACT:
            parts = _best_of_all(nodes, count, rate_of)
        else:
            parts = _better_by_moves(nodes, count, rate_of, memory)
        if not all(rate_of(part) for part in parts):
            break  # there is no room for so many
        best = parts
    best = sorted(best, key=rate_of, reverse=True)
    plans = [plan for part in best if (plan := plan_of(part)) is not None]
    return Replicas(plans=tuple(plans), together=together, is_cut_short=stop())


def apart_from(devices: Sequence[DeviceCost], own: frozenset[NodeId]) -> list[DeviceCost]:
    """The devices, of which those of other computers can have no layers."""
    return [replace(device, is_apart=device.node not in own) for device in devices]


def _best_of_all(
    nodes: Sequence[NodeId], count: int, rate_of: Callable[[frozenset[NodeId]], float]
) -> list[frozenset[NodeId]]:
    """The way to share out all computers in so many parts whose rates are the greatest together.

    A plan leaves computers out that make it no faster: so each computer can be in a part.
    """

    def shared(left: tuple[NodeId, ...], count: int) -> tuple[float, list[frozenset[NodeId]]]:
        if count == 1:
            whole = frozenset(left)
            return rate_of(whole) or float("-inf"), [whole]
        best: tuple[float, list[frozenset[NodeId]]] = (float("-inf"), [frozenset(left)])
        first, others = left[0], left[1:]
        for size in range(len(others) - count + 2):
            for more in combinations(others, size):
                own = frozenset((first, *more))
                own_rate = rate_of(own)
                if not own_rate:
                    continue
                rest, parts = shared(tuple(n for n in others if n not in own), count - 1)
                if own_rate + rest > best[0]:
                    best = own_rate + rest, [own, *parts]
        return best

    total, parts = shared(tuple(nodes), count)
    return parts if total > 0 else [frozenset[NodeId]() for _ in range(count)]


def _better_by_moves(
    nodes: Sequence[NodeId],
    count: int,
    rate_of: Callable[[frozenset[NodeId]], float],
    memory: Mapping[NodeId, int],
) -> list[frozenset[NodeId]]:
    """A way to share out all computers that no move of one, and no exchange of two, makes better.

    It begins with the computers dealt out from the largest to the smallest. That more parts hold the model counts
    before any speed, and until all do, how much memory the least of the others has.
    """
    by_memory = sorted(nodes, key=lambda node: memory[node], reverse=True)
    parts = [frozenset(by_memory[k::count]) for k in range(count)]

    def worth(some: Sequence[frozenset[NodeId]]) -> tuple[int, float]:
        rates = [rate_of(part) for part in some]
        lacking = [sum(memory[n] for n in p) for p, one in zip(some, rates, strict=True) if not one]
        return len(some) - len(lacking), min(lacking) if lacking else sum(rates)

    found = worth(parts)
    while True:
        for other in _neighbours(parts):
            if (value := worth(other)) > found:
                parts, found = other, value
                break
        else:
            return parts


def _neighbours(parts: Sequence[frozenset[NodeId]]) -> list[list[frozenset[NodeId]]]:
    """All ways that are one move, or one exchange, away."""
    found: list[list[frozenset[NodeId]]] = []
    for a, b in combinations(range(len(parts)), 2):
        gives = [frozenset((node,)) for node in sorted(parts[a])]
        takes = [frozenset((node,)) for node in sorted(parts[b])]
        none = frozenset[NodeId]()
        for out, back in (
            *((one, none) for one in gives if len(parts[a]) > 1),
            *((none, one) for one in takes if len(parts[b]) > 1),
            *((one, other) for one in gives for other in takes),
        ):
            changed = list(parts)
            changed[a] = parts[a] - out | back
            changed[b] = parts[b] - back | out
            found.append(changed)
    return found


def explain_replicas(plans: Sequence[Plan], together: float | None) -> str:
    """What it means for people that the model is held several times.

    Args:
        plans: of all replicas that are held.
        together: tokens per second of one replica on all computers; None: not known.
    """
    each = [f"{_names(plan)} ({rate(plan.predicted_tokens_per_s)} tokens/s)" for plan in plans]
    total = rate(sum(plan.users_tokens_per_s for plan in plans))
    line = (
        f"The model is held {len(plans)} times, each time whole: by {', by '.join(each[:-1])}, and by"
        f" {each[-1]}. Several answers at once are shared out among them: {total} tokens/s together. One"
        " answer runs on one of them."
    )
    if together is not None:
        line += f" Held once by all computers, it would give one answer {rate(together)} tokens/s."
    return line


def _names(plan: Plan) -> str:
    names = list(dict.fromkeys(stage.name for stage in plan.stages))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def too_few(wanted: int, found: Replicas) -> str:
    """The sentence that there are fewer replicas than were wanted."""
    count = len(found.plans)
    if found.is_cut_short:
        return (
            f"Of {wanted} replicas, {count} were found in the time that planning may take. Ask for fewer, or try"
            " again when this computer has less to do."
        )
    return (
        f"Your computers have room for {count} of {wanted} replicas: each needs the memory of the whole model"
        " on computers of its own. Lend more memory, add a computer, or choose a smaller scheme."
    )
