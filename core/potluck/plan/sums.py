"""Of which computers it has to be measured what their sums take, before a plan can be made."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations

from potluck.errors import InvalidLayersError
from potluck.ids import NodeId
from potluck.plan.byhand import find_groups
from potluck.plan.cost import DeviceCost, HopCost, Links, ModelShape
from potluck.plan.groups import weigh_groups
from potluck.plan.labels import labels


def pairs_to_measure(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    layers: Sequence[tuple[str, int]] | None = None,
    *,
    prefill_tokens: int,
) -> tuple[tuple[int, int], ...]:
    """The pairs of devices of the groups that are asked for; or of those that pay if sums take no longer than the wire.

    Those come first that are in the fastest group. Of devices of the same two computers, one pair stands for all. GPUs sum
    in a way of their own, which is not measured.

    Args:
        shape: the sizes of the model.
        devices: all devices.
        links: the measured links.
        layers: what the user asked for; None: the planner chooses.
        prefill_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
    """
    if layers is not None:
        with suppress(InvalidLayersError):  # the plan says it
            return _one_of_each(devices, find_groups(devices, labels(devices), layers))
        return ()
    wire = {
        pair: HopCost(latency_ms=link.rtt_ms / 2, ms_per_byte=1000 / link.bytes_per_s)
        for pair, link in links.items()
    }
    at_once = {(d.node, d.node): HopCost(latency_ms=0.0, ms_per_byte=0.0) for d in devices}
    groups, _ = weigh_groups(
        shape, devices, links, sums=wire | at_once, prefill_tokens=prefill_tokens
    )
    return _one_of_each(devices, [group.members for group in groups])


def _one_of_each(
    devices: Sequence[DeviceCost], groups: Iterable[Sequence[int]]
) -> tuple[tuple[int, int], ...]:
    """The pairs of processors in these groups, one for each two computers."""
    found: dict[frozenset[NodeId], tuple[int, int]] = {}
    for members in groups:
        able = [i for i in sorted(members) if devices[i].can_rank]
        for a, b in combinations(able, 2):
            found.setdefault(frozenset((devices[a].node, devices[b].node)), (a, b))
    return tuple(found.values())
