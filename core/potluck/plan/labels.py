"""What devices, computers and rank groups are called in a plan: by the computer's name where that is enough."""

from collections import Counter
from collections.abc import Iterable, Sequence

from potluck.ids import NodeId, short
from potluck.plan.cost import DeviceCost
from potluck.plan.groups import RankGroup


def labels(devices: Sequence[DeviceCost]) -> tuple[str, ...]:
    """A unique name for each device: the computer's name, with id and device only if needed."""
    nodes_of = {
        device.name: {d.node for d in devices if d.name == device.name} for device in devices
    }
    devices_of = Counter(device.node for device in devices)

    def label(device: DeviceCost) -> str:
        name = device.name
        if len(nodes_of[device.name]) > 1:
            name += f" ({short(device.node)})"
        return f"{name}/{device.device}" if devices_of[device.node] > 1 else name

    return tuple(label(device) for device in devices)


def computer_names(devices: Iterable[DeviceCost]) -> dict[NodeId, str]:
    """A unique name for each computer."""
    one_of_each = tuple({device.node: device for device in devices}.values())
    return {
        device.node: name for device, name in zip(one_of_each, labels(one_of_each), strict=True)
    }


def joined(names: Sequence[str], group: RankGroup) -> str:
    """What a group is called: `desktop + attic`."""
    return " + ".join(names[member] for member in group.members)
