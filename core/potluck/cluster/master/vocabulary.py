"""The values that go into the master's state and come out of it. They have no behaviour.

A `Wish` is the request of a caller who waits. An `Action` is begun by `Master`. An `Event` tells
the state what has happened. Some events come from other parts of the node: see
`cluster/events.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import ComputerLost, DeviceChanged, Holds, LinkChanged, StageLost
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.stages import StagePlan

Check: TypeAlias = Callable[[int], None]
"""Raises an error if the context, in tokens, does not suit the caller."""


def no_check(context: int) -> None:
    """Any context suits."""


# --- wishes: what callers wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWish:
    """A caller wants this model loaded as the request says."""

    ticket: int  # number of the wish, unique within its master
    request: PlanRequest
    anew: bool = False  # load it even if it is loaded already, because something else has changed
    check: Check = no_check


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWish:
    """A prompt needs a loaded model: the one that was asked for last, else the default."""

    ticket: int
    default: PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWish:
    """An answer is under way, its pipeline broke, and it wants to go on with another one.

    The model that was asked for last is loaded again, in the scheme that it had.
    """

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImproveWish:
    """Take a better plan, if any, with computers that came, or one without a computer that leaves.

    Until the better plan is being put into force, prompts are answered beside it, and it gives way to
    every other wish.
    """

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadWish:
    """A caller wants the model unloaded from all computers."""

    ticket: int
    keeps_layers: bool = False  # only out of force: the computers free their layers by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnWish:
    """A temporary load (a bench) is over, and the request before it is to be in force again."""

    ticket: int
    lent: PlanRequest  # the temporary request
    asked: PlanRequest | None  # the request that was in force before
    epoch: int | None  # of the deployment that was in force before


Wish: TypeAlias = LoadWish | PromptWish | RecoveryWish | ImproveWish | UnloadWish | ReturnWish


# --- actions: what the master begins


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Open the model, wait for computers, measure them and plan. Ends in `PlanMade` or `Failed`.

    Attributes:
        request: the model, and how to load it.
        settle: wait a moment for computers that are being discovered.
        check: called before anything is measured.
        is_recovery: answers wait for this plan. It keeps the scheme and uses the measurements that
            are there.
        avoid: computers that take part only if the model does not fit without them.
        is_improvement: a plan is in force and goes on. The new one keeps the scheme, and is only
            taken if it is worth the change, or if certain computers were asked for.
        is_handover: an improvement that is taken in any case, since a computer of the plan in force
            is about to leave.
    """

    request: PlanRequest
    settle: bool
    check: Check = no_check
    is_recovery: bool = False
    avoid: frozenset[NodeId] = frozenset()
    is_improvement: bool = False
    is_handover: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """Put the plan that was made into force. Ends in `Loaded` or `Failed`."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Take the deployment out of force. Ends in `Retired`.

    `keep`: computers that get a stage of the next plan, and keep their layers until then.
    """

    keep: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the planning or the deployment that is under way; nobody wants it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """End the pipeline of the deployment, or its loading, with this error.

    With `drains`, the steps under way may end first: all computers are still there.
    """

    error: PotluckError
    drains: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Show a line of text to the person at this computer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell the caller of a wish that it is granted, or why it is not."""

    ticket: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Have a computer free the layers of an epoch that no plan needs any more."""

    node_id: NodeId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Have another replica of the model take the place of the deployment, which is lost or about to leave."""


Action: TypeAlias = MakePlan | Deploy | Retire | Cancel | Break | Tell | Answer | Free | Promote


# --- events: what has happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """A caller waits for this wish."""

    wish: Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The caller of a wish does not wait any more."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Which computers are available now: this one, and the connected ones that lend themselves.

    `leaving`: those that are about to leave, and are not available to other plans. `pauses`: why some
    of these do so, after their names. `replica`: the stages of another replica of the model that answers; None:
    there is none.
    """

    computers: frozenset[NodeId]
    leaving: frozenset[NodeId] = frozenset()
    pauses: Mapping[NodeId, str] = field(default_factory=dict)
    replica: tuple[StagePlan, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBroke:
    """The pipeline of the deployment failed by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """An action that was due has begun."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The plan for the first wish is made, but not in force yet.

    `stages`: None if the plan in force is not worth to be changed.
    """

    stages: tuple[StagePlan, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The deployment is ready for prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """The deployment is out of force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The planning or the deployment that was under way ended with an error.

    `node_id`: the computer that failed; None: it is not known, or it was none in particular.
    """

    error: BaseException
    node_id: NodeId | None = None


Event: TypeAlias = (
    Wished
    | GivenUp
    | Present
    | Holds
    | ComputerLost
    | StageLost
    | LinkChanged
    | DeviceChanged
    | PipelineBroke
    | Began
    | PlanMade
    | Loaded
    | Retired
    | Failed
)
