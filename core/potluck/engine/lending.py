"""The devices that this computer lends: this process's own, and those of its other processes."""

from collections.abc import Callable, Sequence

import torch

from potluck.engine.device import Device, find_device, find_devices
from potluck.wire.messages import DeviceId, DeviceInfo


class Lending:
    """The device of this process. The process of the best device knows the other devices too.

    Args:
        device: the device of this process; None: the best one of this computer.
        cpus: the threads of each device, if the CPU is offered as several; empty: it is one device.
        limit: the most bytes to lend of the RAM, and of each GPU; None: there is no limit.
        find: takes the number of devices that the CPU is offered as, and returns all devices, the
            best one first.
    """

    def __init__(
        self,
        device: DeviceId | None = None,
        *,
        cpus: Sequence[int] = (),
        limit: int | None = None,
        find: Callable[[int], Sequence[Device]] = find_devices,
    ) -> None:
        self.limit = limit
        self._cpus = tuple(cpus)
        count = len(cpus) or 1
        self._others: tuple[Device, ...] = ()
        if device is None:
            self._device, *others = find(count)
            self._others = tuple(others)
        else:
            self._device = find_device(device.kind, device.index, cpus=count)

    @property
    def torch_device(self) -> torch.device:
        return self._device.torch_device

    @property
    def threads(self) -> int | None:
        """The threads of this device, if the CPU is offered as several; None: no number is set."""
        if self._device.kind != "cpu" or not self._cpus:
            return None
        return self._cpus[self._device.index]

    def own(self, *, in_use: int = 0) -> DeviceInfo:
        """What this process's device lends now. `in_use` is the bytes that our own stage holds."""
        return self._info(self._device.now(), in_use)

    def all(self, *, in_use: int = 0) -> tuple[DeviceInfo, ...]:
        """This process's device, then the other devices; their processes need not be running."""
        others = (d.now() if d.kind == "cpu" else d for d in self._others)
        return (self.own(in_use=in_use), *(self._info(device, 0) for device in others))

    def _info(self, device: Device, in_use: int) -> DeviceInfo:
        return DeviceInfo(
            kind=device.kind,
            index=device.index,
            name=device.name,
            memory_total=device.memory_total,
            memory_free=device.lendable(self.limit, in_use=in_use),
        )
