"""What the parts of a node tell each other, and the one place where they say it.

A part publishes what happened and does not know who listens. `Node` says who does. Handlers run at
once, in the order in which they were added, in the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from potluck.api.backend import Holder
from potluck.errors import PotluckError
from potluck.ids import HomeId, NodeId
from potluck.wire.messages import Address, DeviceId, StepFailed

NoticeLevel: TypeAlias = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Something that is shown, or that other computers are told, is different now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    """The model of this computer's master, or the load of it, is further; only clients are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One calm line for the person at this computer."""

    level: NoticeLevel
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderLeft:
    """Nobody of this kind needs the node any more."""

    holder: Holder


# --- this computer


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDied:
    """A stage process of this computer ended unasked, and its layers are gone."""

    device: DeviceId
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused:
    """A stage could not do a step. `node_id` is whose stage; None: this computer's."""

    failure: StepFailed
    node_id: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsChanged:
    """This computer computes with another number of threads: its measured times are outdated."""


# --- the other computers


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryChanged:
    """Other computers were found on the network, or are gone from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerPaired:
    """A computer was paired, and belongs to this one's home."""

    node_id: NodeId
    name: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeJoined:
    """This computer is a worker of another computer's home now."""

    master_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeLeft:
    """The master of a home has removed this computer from it."""

    home: HomeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A computer says which epoch's layers it has loaded for this home; None: none."""

    node_id: NodeId
    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerLost:
    """A computer stopped answering, or does not lend itself any more."""

    node_id: NodeId
    name: str
    how: str  # the sentence goes on: "stopped answering"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLost:
    """A computer is still here and has lost its layers.

    `epoch` and `device` say whose layers, where the computer said so: layers of another plan, or of a
    device without a stage, are no loss.
    """

    node_id: NodeId
    place: str  # the name of the computer, maybe with the device's
    how: str
    epoch: int | None = None
    device: DeviceId | None = None
    notice: str | None = None


_E = TypeVar("_E")


class Events:
    """Passes each event to those who asked for its type."""

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}

    def on(self, kind: type[_E], handler: Callable[[_E], None]) -> None:
        """Have the handler called with each event of this type."""
        self._handlers.setdefault(kind, []).append(handler)

    def publish(self, event: object) -> None:
        """Tell everyone who asked for events of this type."""
        for handler in self._handlers.get(type(event), ()):
            handler(event)

    def changed(self) -> None:
        self.publish(Changed())
