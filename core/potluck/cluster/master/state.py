"""What the master knows, as values without behaviour: `State`, and the deployment in it.

The state has the known computers, the waiting wishes and the action under way. What an event makes of
it is in `transitions.py`, and what follows from it in `decision.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.api.values.schema import PlanRequest
from potluck.cluster.device_names import device_of
from potluck.cluster.master.vocabulary import (
    Answer,
    Break,
    Deploy,
    MakePlan,
    Retire,
    ReturnWish,
    Wish,
)
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.stages import StagePlan
from potluck.wire.messages import DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """The plan that is in force or being put into force."""

    epoch: int
    stages: tuple[StagePlan, ...]
    is_loaded: bool = False
    is_broken: bool = False
    has_failed: bool = False  # it could not be loaded; layers that are loaded already have to go
    loss: Break | None = None  # a lost computer that the users of the deployment must be told of
    told: frozenset[NodeId] = frozenset()  # lost computers of it that there was a notice of

    @property
    def is_ready(self) -> bool:
        return self.is_loaded and not self.is_broken

    @property
    def computers(self) -> frozenset[NodeId]:
        return frozenset(stage.node for stage in self.stages)

    def devices_of(self, node_id: NodeId) -> frozenset[DeviceId]:
        """The devices of a computer that have a stage."""
        return frozenset(device_of(stage.device) for stage in self.stages if stage.node == node_id)

    def uses(self, node_id: NodeId, device: DeviceId | None = None) -> bool:
        """Whether a computer has a stage; with `device`, whether that device of it has one."""
        devices = self.devices_of(node_id)
        return bool(devices) if device is None else device in devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the first wish ends, once what was begun for it is undone."""

    error: BaseException | None  # None: it was given up, and its caller does not wait any more
    is_told: bool = False  # the action under way was cancelled already


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that the decisions depend on."""

    epoch: int  # of the last deployment
    asked: PlanRequest | None = None  # the request of the next prompt, whether it is loaded or not
    wishes: tuple[Wish, ...] = ()  # first come, first served
    answers: tuple[Answer, ...] = ()  # not given yet
    here: frozenset[NodeId] = frozenset()  # the available computers, this one among them
    leaving: frozenset[NodeId] = frozenset()  # these go on for a moment with what they hold
    pauses: Mapping[NodeId, str] = field(default_factory=dict)  # why some of these leave
    needed: frozenset[NodeId] = frozenset()  # leaving ones that the model does not fit without
    missing: frozenset[NodeId] = frozenset()  # computers lost from the plan that was asked for
    held: Mapping[NodeId, int] = field(default_factory=dict)  # epoch of the layers that each holds
    kept: Mapping[NodeId, int] = field(default_factory=dict)  # epoch of layers for the next plan
    work: MakePlan | Deploy | Retire | None = None  # the action under way
    plan: tuple[StagePlan, ...] | None = None  # made for the first wish, and not in force yet
    deployed: Deployed | None = None
    replica: tuple[StagePlan, ...] | None = None  # another replica of the deployment, which answers
    before: Deployed | None = None  # the plan that broke: who it lost may become known afterwards
    notices: tuple[str, ...] = ()  # that are not shown yet
    ending: Ending | None = None
    failure: PotluckError | None = None  # why nothing is loaded
    attempts: int = 0  # that failed for the first wish, and after which another plan is made
    tried: PotluckError | None = None  # why the last of these failed
    avoid: frozenset[NodeId] = frozenset()  # computers that lost a stage or failed since a load
    weighed: frozenset[NodeId] = frozenset()  # computers that could be in the plan in force

    @property
    def is_ready(self) -> bool:
        return self.deployed is not None and self.deployed.is_ready

    @property
    def is_preparing(self) -> bool:
        """Whether a model is being prepared whose plan is not in force yet."""
        if self.work is None and self.plan is None:
            return False
        is_beside = isinstance(self.work, MakePlan) and self.work.is_improvement
        return (isinstance(self.work, MakePlan) and not is_beside) or self.plan is not None


def leavers(state: State) -> frozenset[NodeId]:
    """The computers of the plan in force that are about to leave."""
    return state.leaving & state.deployed.computers if state.deployed is not None else frozenset()


def change_deployed(state: State, **changes: Any) -> State:
    """The state with these fields of its deployment changed, if there is one."""
    if state.deployed is None:
        return state
    return replace(state, deployed=replace(state.deployed, **changes))


def is_lent_still(state: State, wish: ReturnWish) -> bool:
    """Whether the temporary load is still in force: nothing else was asked for since."""
    epoch = state.deployed.epoch if state.deployed is not None else None
    return state.asked in (wish.lent, None) and (epoch is None or epoch != wish.epoch)
