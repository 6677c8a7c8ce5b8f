"""Which devices of this computer have a stage, in its own master's plan or in another home's."""

from dataclasses import dataclass

from potluck.wire.messages import DeviceId


@dataclass(slots=True, eq=False)
class DeviceUse:
    """The devices in use. The master and the worker of this node write it, and others read it."""

    own: frozenset[DeviceId] = frozenset()
    lent: frozenset[DeviceId] = frozenset()
    lent_to: str | None = None  # the name of the home's master

    def has(self, device: DeviceId) -> bool:
        """Whether a device has a stage, even if nothing is loaded yet."""
        return device in self.own or device in self.lent
