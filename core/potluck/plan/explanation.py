"""Explain a plan in plain words, for users who know their computers but not the field."""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.errors import format_bytes
from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, ModelShape, has_equal_layers
from potluck.plan.groups import MOST_GROUPS, RankGroup, Tried
from potluck.plan.preferences import MOVED
from potluck.plan.route import Problem, Route, is_full, ranges, tour_ms
from potluck.plan.search import Stop, best_including

_WORTH_A_CABLE = 0.1  # of the time of a token: less is not seen
_NO_SHARE = "its memory or the number of layers leaves no share for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The speed of one computer without the others."""

    node: NodeId
    name: str
    tokens_per_s: float | None
    missing: int = 0  # bytes that it lacks if the model does not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All facts that the explanation is made from."""

    shape: ModelShape
    devices: Sequence[DeviceCost]
    names: Sequence[str]
    problem: Problem
    route: Route
    best: Route | None  # the route that the planner finds without the user's layers
    by_hand: bool = False
    alone: Sequence[Alone]
    users: int
    users_tokens_per_s: float  # of all of them together
    cabled: Problem | None = (
        None  # the same with cables in place of Wi-Fi; None: nobody says to be on Wi-Fi
    )
    groups: Sequence[RankGroup] = ()  # the last ones of `devices`
    untaken: Tried | None = None  # the fastest group with measured sums, if none is in the plan
    stays: bool = False  # layers stay where they were, if a token takes little longer for it
    chunk_tokens: int = 256  # of a prompt, that devices were measured with
    stop: Stop  # once it returns True, searches for comparisons end soon

    @property
    def singles(self) -> int:
        """How many of the devices are no groups."""
        return len(self.devices) - len(self.groups)

    @property
    def candidates(self) -> list[int]:
        """The devices that could have layers of this plan."""
        return [i for i in range(self.singles) if not self.devices[i].is_apart]

    def parts(self, i: int) -> Sequence[int]:
        """The devices that a device consists of: a group's members, or it alone."""
        return (i,) if i < self.singles else self.groups[i - self.singles].members


def explain(decision: Decision) -> str:
    """Lines of text: one for the whole plan, one for each device, one for each computer alone."""
    route = decision.route
    lines = [_headline(decision)]
    shares = enumerate(ranges(route.counts))
    lines += [_share(decision, k, layers) for k, layers in shares]
    lines += _beside_layers(decision)
    lines += _wifi(decision)
    lines += _reading(decision)
    if decision.by_hand:
        lines += _alternative(decision)
    else:
        used = {part for i in route.devices for part in decision.parts(i)}
        idle = [i for i in decision.candidates if i not in used]
        lines += [f"{decision.names[i]} gets nothing: {_why_idle(decision, i)}." for i in idle]
        lines += _why_apart(decision)
        lines += _gap(decision)
    here = {decision.devices[i].node for i in decision.candidates}
    alone = [_alone(one) for one in decision.alone if one.node in here]
    if len(alone) > 1:
        lines.append(" ".join(alone))
    return "\n".join(lines)


def rate(tokens_per_s: float) -> str:
    """A rate as text for people: `24.1`, `118`."""
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.1f}"


def seconds(ms: float) -> str:
    """A time that a person waits: `0.4 s`, `19 s`."""
    return f"{ms / 1000:.0f} s" if ms >= 9500 else f"{ms / 1000:.1f} s"


def _headline(decision: Decision) -> str:
    route = decision.route
    speed = f"about {rate(1000 / route.ms)} tokens/s for one user" if route.ms else "no time at all"
    parts = [decision.devices[part] for i in route.devices for part in decision.parts(i)]
    used = {device.node: device.name for device in parts}
    names = list(used.values())
    if decision.by_hand:
        start = "The layers are shared out as you asked"
    elif len(names) == 1:
        start = f"{names[0]} does it alone"
    else:
        start = f"{_all_of(names)} work together"
    network = tour_ms(decision.problem, route.devices)
    line = f"{start}: {speed}. A token takes {_ms(route.ms - network)} of computing"
    if list(used) == [decision.devices[0].node]:  # the main computer
        line += f" and {_ms(network)} on its way through Potluck; no link: all is on this computer."
    else:
        line += f" and {_ms(network)} on the links."
    if decision.users > 1:
        together = rate(decision.users_tokens_per_s)
        line += f" For {decision.users} at once: {together} tokens/s together."
    return line


def _share(decision: Decision, k: int, layers: range) -> str:
    i, count = decision.route.devices[k], len(layers)
    name = decision.names[i]
    if i >= decision.singles:
        return _share_of_group(decision, i, layers)
    if count == decision.shape.num_layers:
        has = f"{name} has all {count} layers"
    elif count == 1:
        has = f"{name} has layer {layers.start}"
    else:
        has = f"{name} has layers {layers.start} to {layers.stop - 1}"
    reasons = [] if decision.by_hand else _why_so_many(decision, k, layers)
    return f"{has}: {', and '.join(reasons)}." if reasons else f"{has}."


def _share_of_group(decision: Decision, i: int, layers: range) -> str:
    name, count = decision.names[i], len(layers)
    if count == decision.shape.num_layers:
        have = f"{name} together have all {count} layers"
    elif count == 1:
        have = f"{name} together have layer {layers.start}"
    else:
        have = f"{name} together have layers {layers.start} to {layers.stop - 1}"
    have = f"{have}, each a share of every layer ({_shares(decision, i)})"
    return f"{have}." if decision.by_hand else f"{have}: {_why_together(decision, i)}."


def _shares(decision: Decision, i: int) -> str:
    """The share that each rank of a group has of every layer."""
    group = decision.groups[i - decision.singles]
    return ", ".join(f"{100 * part:.0f} %" for part in group.parts)


def _beside_layers(decision: Decision) -> list[str]:
    """Which computers read tables from their disks."""
    lines: list[str] = []
    for k, layers in enumerate(ranges(decision.route.counts)):
        if nbytes := decision.shape.tables(layers):
            lines.append(
                f"{decision.names[decision.route.devices[k]]} reads rows of a table of"
                f" {format_bytes(nbytes)} from its disk for each token; it takes no memory."
            )
    return lines


def _wifi(decision: Decision) -> list[str]:
    """What cables would gain, if that is worth one."""
    route, cabled = decision.route, decision.cabled
    if cabled is None:
        return []
    after = route.ms - tour_ms(decision.problem, route.devices) + tour_ms(cabled, route.devices)
    if after > (1 - _WORTH_A_CABLE) * route.ms:
        return []
    parts = [decision.devices[part] for i in route.devices for part in decision.parts(i)]
    on_wifi = [device for device in (decision.devices[0], *parts) if device.on_wifi]
    names = list(dict.fromkeys(device.name for device in on_wifi))
    versus = _versus(after, route.ms)
    if len(names) == 1:
        return [f"{names[0]} is on Wi-Fi: with a cable a token would take about {versus}."]
    return [f"{_all_of(names)} are on Wi-Fi: with cables a token would take about {versus}."]


def _reading(decision: Decision) -> list[str]:
    """Who reads pictures, and what it costs that it comes first."""
    route, best = decision.route, decision.best
    if not decision.shape.picture_tokens:
        return []
    readers = [decision.names[i] for i in decision.parts(route.devices[0])]
    if decision.users == 1 and not decision.by_hand and best and route.ms - best.ms >= 0.0005:
        cost = _versus(route.ms, best.ms)
        if len(readers) == 1:
            return [f"{readers[0]} is first since it reads pictures sooner: a token takes {cost}."]
        return [
            f"{_all_of(readers)} are first since they read pictures sooner: a token takes {cost}."
        ]
    if len(route.devices) == 1 and len(readers) == 1:
        return []
    if len(readers) == 1:
        return [f"{readers[0]} reads pictures."]
    return [f"{_all_of(readers)} read pictures."]


def _why_so_many(decision: Decision, k: int, layers: range) -> list[str]:
    problem, route = decision.problem, decision.route
    i = route.devices[k]
    others = [
        problem.layer_ms(other)
        for other, device in enumerate(decision.devices)
        if other != i and not device.is_apart
    ]
    reasons: list[str] = []
    if others and problem.layer_ms(i) < min(others):
        reasons.append("it is the fastest")
    if len(layers) == decision.shape.num_layers:
        if others:
            reasons.append("it holds the whole model")
    elif is_full(problem, route, k):
        reasons.append("its memory holds no more")
    elif decision.users > 1:
        reasons.append("with more it would keep the others waiting")
    elif len(layers) == 1:
        reasons.append("it takes as little as possible, being slower")
    elif not has_equal_layers(decision.shape, decision.devices):
        reasons.append("the layers differ, and cut here a token is fastest")
    else:
        reasons.append("the faster ones are full")
    return reasons


def _why_together(decision: Decision, i: int) -> str:
    problem, first = decision.problem, decision.parts(i)[0]
    return (
        f"a layer takes them {_ms(problem.layer_ms(i))}, of which its sums take"
        f" {_ms(decision.groups[i - decision.singles].sums_ms)}, and"
        f" {decision.names[first]} alone {_ms(problem.layer_ms(first))}"
    )


def _why_apart(decision: Decision) -> list[str]:
    """Why those do not compute their layers together who could."""
    if (tried := decision.untaken) is None:
        return []
    names = " + ".join(decision.names[i] for i in tried.group.members)
    return [f"{names} do not compute layers together: {_against(decision, tried)}."]


def _against(decision: Decision, tried: Tried) -> str:
    group, shape = tried.group, decision.shape
    slowest = group.members[-1]
    name, device = decision.names[slowest], decision.devices[slowest]
    match tried.against:
        case "tables":
            return "a model that reads a table from the disk is not shared out in this way"
        case "memory":
            return "one of them has no memory for its share of a layer"
        case "sums":
            return (
                f"a layer would take them {_ms(_of_layer(shape, group.cost.decode_ms))}, of which its sums"
                f" {_ms(group.sums_ms)}, and {name} alone {_ms(_of_layer(shape, device.decode_ms))}"
            )
        case "prompts":
            return (
                f"a layer would take them {_ms(_of_layer(shape, group.cost.prefill_ms))} for"
                f" {decision.chunk_tokens:,} tokens of a prompt, and {name} alone"
                f" {_ms(_of_layer(shape, device.prefill_ms))}"
            )
        case "others":
            return (
                f"{MOST_GROUPS} other groups take less time for a layer, and no more are compared"
            )
        case "gain":
            versus = _versus(tried.token_ms, _compared_ms(decision))
            return f"with them a token would take {versus}, and so small a gain may be an error of the prediction"
        case "slower":
            return f"with them a token would take {_versus(tried.token_ms, _compared_ms(decision))}"
        case "room" | None:
            return "their memory or the number of layers leaves no share for them"


def _compared_ms(decision: Decision) -> float:
    """The time of a token on the route that groups were compared with."""
    return (decision.best or decision.route).ms


def _of_layer(shape: ModelShape, of_kind: Sequence[float]) -> float:
    """The mean time of one layer."""
    return sum(of_kind[kind] for kind in shape.layers) / shape.num_layers


def _why_idle(decision: Decision, i: int) -> str:
    problem, route, shape = decision.problem, decision.route, decision.shape
    if decision.devices[i].memory < shape.smallest_layer_memory:
        offers = format_bytes(decision.devices[i].memory)
        return f"one layer takes {format_bytes(shape.smallest_layer_memory)} and it offers {offers}"
    if decision.users > 1:
        return f"with it {decision.users} at once would get no more tokens"
    other = best_including(problem, route, i, decision.stop)
    if other is None:
        return _NO_SHARE
    if other.ms - route.ms < 0.0005:
        return "with it a token would not be faster"
    return f"with it a token would take {_versus(other.ms, route.ms)}"


def _gap(decision: Decision) -> list[str]:
    """How much faster another plan could be, if the plan is not proven to be the best for tokens."""
    route = decision.best or decision.route
    if decision.users > 1 or route.is_optimal:
        return []
    percent = max(1, round(100 * (route.ms / max(route.bound_ms, 1e-6) - 1)))
    if decision.shape.has_tables:
        return [
            "Layers with a table stay on the computers that have it on their disk:"
            f" another way could be up to {percent} % faster."
        ]
    if decision.stays and route.ms <= (1 + MOVED) * route.bound_ms:
        return [
            f"Layers stay where they are loaded: another way could be up to {percent} % faster."
        ]
    return [
        "So many computers can be shared out in more ways than there is time to compare:"
        f" another way could be up to {percent} % faster."
    ]


def _alternative(decision: Decision) -> list[str]:
    best = decision.best
    if best is None or best.ms >= decision.route.ms - 0.0005:
        return []
    shares = ", ".join(
        f"{decision.names[i]} {count}" for i, count in zip(best.devices, best.counts, strict=True)
    )
    return [f"Faster would be {shares}: about {rate(1000 / max(best.ms, 1e-6))} tokens/s."]


def _alone(alone: Alone) -> str:
    if alone.tokens_per_s is None:
        return (
            f"{alone.name} cannot hold the model alone: {format_bytes(alone.missing)} are missing."
        )
    return f"{alone.name} alone would give {rate(alone.tokens_per_s)} tokens/s."


def _all_of(names: Sequence[str]) -> str:
    """`Desktop, Mac and Attic`."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _ms(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 0.1 else f"{ms:.3f} ms"


def _versus(after: float, before: float) -> str:
    """Two times as text, with enough digits to show the difference."""
    if _ms(after) != _ms(before):
        return f"{_ms(after)} instead of {_ms(before)}"
    return f"{after:.3f} ms instead of {before:.3f} ms"
