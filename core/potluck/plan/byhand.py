"""Make a route from the layers that a user gave: `Desktop+Attic=20,Laptop=16`, in this order.

A computer is given by its name, in upper or lower case, or by the first characters of its id. This
means its best device, which is the first one in the list. `name/device` means a certain device.
A plus joins devices into a rank group, which computes its layers together.
"""

from collections.abc import Sequence

from potluck.errors import InvalidLayersError, NotEnoughMemoryError, UsageError
from potluck.ids import short
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.groups import RankGroup, memory_of
from potluck.plan.route import Problem, Route, ranges, route_cost_ms, workers_of
from potluck.plan.stages import Plan

_SHORTEST_ID = 4  # fewer characters are not taken for the beginning of an id


def by_hand(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The layers of a plan as a user asks for them: the ranks of a group are joined with a plus."""
    asked: list[tuple[str, int]] = []
    for stage in plan.stages:
        name = f"{stage.name}/{stage.device}"
        if stage.rank:
            name = f"{asked.pop()[0]}+{name}"
        asked.append((name, len(stage.layers)))
    return tuple(asked)


def find_groups(
    devices: Sequence[DeviceCost], names: Sequence[str], layers: Sequence[tuple[str, int]]
) -> list[tuple[int, ...]]:
    """The devices of each rank group that is asked for.

    Raises:
        InvalidLayersError: a name is unknown or ambiguous, or a device is in it twice.
    """
    groups: list[tuple[int, ...]] = []
    for name, count in layers:
        members = _find_all(devices, names, name)
        if len(set(members)) < len(members):
            raise InvalidLayersError(f"{name} names a device twice. Each can be in it once.")
        if count and len(members) > 1:
            groups.append(members)
    return groups


def follow(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    names: Sequence[str],
    problem: Problem,
    layers: Sequence[tuple[str, int]],
    groups: Sequence[RankGroup] = (),
) -> Route:
    """The route that was asked for. A device with 0 layers is left out.

    Args:
        shape: the sizes of the model.
        devices: that can be used.
        names: of the devices.
        problem: with the devices, and behind them the groups.
        layers: what the user asked for.
        groups: those of `find_groups`.

    Raises:
        InvalidLayersError: a name is unknown or ambiguous, or the counts do not add up.
        NotEnoughMemoryError: a computer's share does not fit.
        UsageError: fewer computers than asked for take part.
    """
    chosen: list[int] = []
    counts: list[int] = []
    named: set[int] = set()
    places = {group.members: len(devices) + k for k, group in enumerate(groups)}
    for name, count in layers:
        members = _find_all(devices, names, name)
        if count < 0:
            raise InvalidLayersError(f"{name} cannot have {count} layers.", layers=count)
        if twice := named.intersection(members):
            raise InvalidLayersError(
                f"{names[min(twice)]} is named twice. Its layers are one range: name it once."
            )
        named.update(members if count else ())
        if count:
            chosen.append(members[0] if len(members) == 1 else places[members])
            counts.append(count)
    check_sum(layers, shape.num_layers)
    for k, (i, share) in enumerate(zip(chosen, ranges(counts), strict=True)):
        ends = {"first": k == 0, "last": k == len(chosen) - 1}
        if i < len(devices):
            _check_memory(shape.stage_memory(share, **ends), i, devices, names)
            continue
        group = groups[i - len(devices)]
        for rank, member in enumerate(group.members):
            _check_memory(memory_of(shape, group, rank, share, **ends), member, devices, names)
    if workers_of(problem, chosen) < problem.min_workers:
        raise UsageError(
            f"{problem.min_workers} other computers were to take part, but the layers given name"
            f" {workers_of(problem, chosen)}."
        )
    ms = route_cost_ms(problem, chosen, counts)
    return Route(devices=tuple(chosen), counts=tuple(counts), ms=ms)


def check_sum(layers: Sequence[tuple[str, int]], num_layers: int) -> None:
    """Check that the counts add up to the model's layers. This needs no measurements.

    Raises:
        InvalidLayersError: they do not add up.
    """
    given = sum(count for _, count in layers)
    if given != num_layers:
        raise InvalidLayersError(
            f"The model has {num_layers} layers, and the ones given add up to {given}."
            f" Choose numbers that add up to {num_layers}.",
            num_layers=num_layers,
            given=given,
        )


def _check_memory(needed: int, i: int, devices: Sequence[DeviceCost], names: Sequence[str]) -> None:
    if devices[i].is_apart:
        raise InvalidLayersError(
            f"{names[i]} reads prompts for the others, so it cannot answer them as well. Leave it out of"
            " --layers, or out of --prefill.",
            name=names[i],
        )
    if needed > devices[i].memory:
        raise NotEnoughMemoryError(needed, devices[i].memory, names[i])


def _find_all(devices: Sequence[DeviceCost], names: Sequence[str], wanted: str) -> tuple[int, ...]:
    """The device of a name, or those that a plus joins. A plus may also be a part of a name."""
    try:
        return (find_device(devices, names, wanted),)
    except InvalidLayersError:
        if "+" not in wanted:
            raise
    return tuple(find_device(devices, names, part) for part in wanted.split("+"))


def find_device(devices: Sequence[DeviceCost], names: Sequence[str], wanted: str) -> int:
    """The index of the device that a user means.

    Raises:
        InvalidLayersError: there is none, or there are several.
    """
    key = wanted.strip().casefold()
    everyone = range(len(devices))
    found = [i for i in everyone if key in (devices[i].name.casefold(), names[i].casefold())]
    if len(found) != 1:
        exact = [i for i in everyone if f"{devices[i].name}/{devices[i].device}".casefold() == key]
        found = exact or found
    if not found and len(key) >= _SHORTEST_ID:
        found = [i for i in everyone if devices[i].node.startswith(key)]
    if len({devices[i].node for i in found}) == 1:
        return found[0]
    if found:
        choices = ", ".join(
            f"{names[i]} (id {short(devices[i].node)}, {devices[i].device})" for i in found
        )
        raise InvalidLayersError(
            f"{wanted} may mean several: {choices}. Use the id.",
            name=wanted,
        )
    raise InvalidLayersError(
        f"There is no computer called {wanted} that can take part now. There are:"
        f" {', '.join(names)}.",
        name=wanted,
    )
