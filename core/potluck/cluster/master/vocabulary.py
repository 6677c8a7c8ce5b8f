"""What the master's state is told, and what it has done: values without behaviour.

A `Wish` is somebody who waits, an `Action` is what `Master` begins, an `Event` what happens. Three events
come from other parts of the node and are in `cluster/events.py`.
"""

from dataclasses import dataclass
from typing import TypeAlias

from potluck.api.schema import PlanRequest
from potluck.cluster.events import ComputerLost, Holds, StageLost
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.placement import Stage

# --- who waits, and for what


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWish:
    """Somebody wants this model loaded as the request says."""

    ticket: int  # of who waits; each has another
    request: PlanRequest
    anew: bool = False  # also where it is loaded already, since something else is not as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWish:
    """A prompt wants a model that answers: the one that was asked for, else the default."""

    ticket: int
    default: PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadWish:
    """Somebody wants the memory of all computers back."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnWish:
    """A load was for a while only (a bench), and the while is over."""

    ticket: int
    lent: PlanRequest  # what was loaded for that while
    asked: PlanRequest | None  # what was asked for before
    epoch: int | None  # of what was deployed before


Wish: TypeAlias = LoadWish | PromptWish | UnloadWish | ReturnWish


# --- what is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Open the model, wait for computers, measure them and plan. Ends in `PlanMade` or `Failed`."""

    ticket: int
    request: PlanRequest
    settle: bool  # give computers that are just being found a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """Put the plan that was made into force. Ends in `Loaded` or `Failed`."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Take the deployment out of force. Ends in `Retired`.

    `keep`: computers that get a part of the next plan and keep their layers until then.
    """

    keep: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End the plan or the deployment under way; nobody wants it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """End whatever runs on the deployment, or loads it, with this error."""

    error: PotluckError
    notice: str | None = None  # for the person at this computer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell who waits that the wish is granted, or why not."""

    ticket: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Have a computer give back the layers of an epoch that no plan needs any more."""

    node_id: NodeId
    epoch: int


Action: TypeAlias = MakePlan | Deploy | Retire | Cancel | Break | Answer | Free


# --- what happens


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """Somebody waits for something."""

    wish: Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Who waited does not want it any more."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Which computers are here and lend themselves, this one among them."""

    computers: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBroke:
    """The pipeline of the deployment failed by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """An action that was due is under way."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The plan for the first wish is there, and not in force yet."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The deployment is ready for prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """The deployment is out of force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The plan or the deployment under way ended without success."""

    error: BaseException


Event: TypeAlias = (
    Wished
    | GivenUp
    | Present
    | Holds
    | ComputerLost
    | StageLost
    | PipelineBroke
    | Began
    | PlanMade
    | Loaded
    | Retired
    | Failed
)
