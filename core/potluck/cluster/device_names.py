"""The names of a computer's devices for people: `cuda:1`, or `cpu` if there is only one CPU."""

import re
from collections.abc import Iterable

import msgspec

from potluck.wire.messages import DeviceId, DeviceInfo

_NAME_LENGTH = 128  # of a node, on the wire
_DEVICE = re.compile(r"/(cuda|mps|cpu)(:\d+)?\s*\Z", re.IGNORECASE)


def device_label(device: DeviceId | DeviceInfo, among: Iterable[DeviceInfo] = ()) -> str:
    """The name of a device in plans. `among` has all devices of its computer."""
    alike = sum(other.kind == device.kind for other in among)
    if device.kind == "cuda" or device.index or alike > 1:
        return f"{device.kind}:{device.index}"
    return device.kind


def device_of(label: str) -> DeviceId:
    """The device that has this name in plans."""
    kind, _, index = label.partition(":")
    return msgspec.convert({"kind": kind, "index": int(index or 0)}, DeviceId)


def computer_of(place: str) -> str:
    """The computer's name in a place such as `Desk/cuda:1`. The device may be left out."""
    return _DEVICE.sub("", place)


def place_name(name: str, device: DeviceId | DeviceInfo, among: Iterable[DeviceInfo]) -> str:
    """The computer's name, followed by the device if there are several: `Desk/cuda:1`."""
    among = tuple(among)
    if len(among) < 2:
        return name
    label = f"/{device_label(device, among)}"
    return name[: _NAME_LENGTH - len(label)] + label


def describe(device: DeviceInfo) -> str:
    """A device in a few words: `NVIDIA GeForce RTX 3060, 12 GB`."""
    return f"{device.name or device.kind}, {device.memory_total / 1e9:.0f} GB"
