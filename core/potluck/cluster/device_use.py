"""Which devices of this computer have a stage, of its own master's plan or of another home's."""

from dataclasses import dataclass

from potluck.wire.messages import DeviceId


@dataclass(slots=True, eq=False)
class DeviceUse:
    """Kept up to date by the master and the worker of this node; read by who has to leave them alone."""

    own: frozenset[DeviceId] = frozenset()
    lent: frozenset[DeviceId] = frozenset()
    lent_to: str | None = None  # the name of the home's master

    def has(self, device: DeviceId) -> bool:
        """Whether a device has a stage, though there may be nothing loaded yet."""
        return device in self.own or device in self.lent
