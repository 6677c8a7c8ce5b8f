"""How people call the devices of a computer: `cuda:1`, and `cpu` where there is only one."""

from collections.abc import Iterable

from potluck.wire.messages import DeviceId, DeviceInfo

_NAME_LENGTH = 128  # of a node, on the wire


def device_label(device: DeviceId | DeviceInfo, among: Iterable[DeviceInfo] = ()) -> str:
    """As plans show it; `among` are all devices of the computer."""
    alike = sum(other.kind == device.kind for other in among)
    if device.kind == "cuda" or device.index or alike > 1:
        return f"{device.kind}:{device.index}"
    return device.kind


def device_of(label: str, among: Iterable[DeviceInfo]) -> DeviceId | None:
    """The device of a computer that a plan calls so; None: it has none."""
    among = tuple(among)
    return next((d.id for d in among if device_label(d, among) == label), None)


def place_name(name: str, device: DeviceId | DeviceInfo, among: Iterable[DeviceInfo]) -> str:
    """The computer's name; where it has several devices, with the device's: `Desk/cuda:1`."""
    among = tuple(among)
    if len(among) < 2:
        return name
    label = f"/{device_label(device, among)}"
    return name[: _NAME_LENGTH - len(label)] + label
