"""The events that the parts of a node send each other, and `Events`, which passes them on.

A part publishes what happened and does not know who listens. `Node` connects the handlers. They run
at once, in the event loop, in the order in which they were added.
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
    """A state that clients are shown, or that other computers are told, has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    """The state of this master's model, or of its loading, has changed. Only clients are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One line of text for the person at this computer."""

    level: NoticeLevel
    text: str


# --- this computer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused:
    """A stage could not do a step. `node_id` is the stage's computer; None: this computer."""

    failure: StepFailed
    node_id: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsChanged:
    """This computer computes with another number of threads: its measured times are outdated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDied:
    """A stage process of this computer ended without being asked, and its layers are gone."""

    device: DeviceId
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded:
    """A program that held the node has ended."""

    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The owner of this computer ends Potluck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorAsked:
    """This node is to end, and one of the version that is in use now to start."""


# --- the other computers


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

    home_id: HomeId


@dataclass(frozen=True, slots=True, kw_only=True)
class StillNeeded:
    """The model of a master does not fit without this computer, which leaves."""

    master_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A computer reports the epoch of the layers that it has loaded for this home; None: none."""

    node_id: NodeId
    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerLeaves:
    """A computer says that it stops lending itself in a moment. What it has loaded goes on until then."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerLost:
    """A computer stopped answering, or does not lend itself any more."""

    node_id: NodeId
    name: str
    how: str  # rest of a sentence after the name: "stopped answering"
    is_connected: bool = False  # what it has computed can still be had


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLost:
    """A computer is still connected but has lost its layers.

    `epoch` and `device` say which layers, if that is known. Layers of another plan are no loss, nor are those of a
    device without a stage.
    """

    node_id: NodeId
    place: str  # the name of the computer; with the device if it has several
    how: str
    epoch: int | None = None
    device: DeviceId | None = None
    notice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChanged:
    """A link was measured again, and costs something else than before: another plan may pay."""

    source: NodeId
    target: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChanged:
    """A device of a computer is slower or faster in use than it was planned with."""

    node_id: NodeId


_E = TypeVar("_E")


class Events:
    """Passes each event to the handlers of its type."""

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}

    def on(self, kind: type[_E], handler: Callable[[_E], None]) -> None:
        """Add a handler that is called with each event of this type."""
        self._handlers.setdefault(kind, []).append(handler)

    def publish(self, event: object) -> None:
        """Call the handlers of the event's type."""
        for handler in self._handlers.get(type(event), ()):
            handler(event)

    def changed(self) -> None:
        self.publish(Changed())
