"""Make a route from the layers that a user gave: `Desktop=20,Laptop=16`, in this order.

A computer is given by its name, in upper or lower case, or by the first characters of its id. This
means its best device, which is the first one in the list. `name/device` means a certain device.
"""

from collections.abc import Sequence

from potluck.errors import InvalidLayersError, NotEnoughMemoryError, UsageError
from potluck.ids import short
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.route import Problem, Route, ranges, route_cost_ms, workers_of

_SHORTEST_ID = 4  # fewer characters are not taken for the beginning of an id


def follow(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    names: Sequence[str],
    problem: Problem,
    layers: Sequence[tuple[str, int]],
) -> Route:
    """The route that was asked for. A device with 0 layers is left out.

    Raises:
        InvalidLayersError: a name is unknown or ambiguous, or the counts do not add up.
        NotEnoughMemoryError: a computer's share does not fit.
        UsageError: fewer computers than asked for take part.
    """
    chosen: list[int] = []
    counts: list[int] = []
    for name, count in layers:
        i = _find(devices, names, name)
        if count < 0:
            raise InvalidLayersError(f"{names[i]} cannot have {count} layers.", layers=count)
        if i in chosen:
            raise InvalidLayersError(
                f"{names[i]} is named twice. Its layers are one range: name it once."
            )
        if count:
            chosen.append(i)
            counts.append(count)
    check_sum(layers, shape.num_layers)
    for k, (i, share) in enumerate(zip(chosen, ranges(counts), strict=True)):
        needed = shape.stage_memory(share, first=k == 0, last=k == len(chosen) - 1)
        if needed > devices[i].memory:
            raise NotEnoughMemoryError(needed, devices[i].memory, names[i])
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


def _find(devices: Sequence[DeviceCost], names: Sequence[str], wanted: str) -> int:
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
