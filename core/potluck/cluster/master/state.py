"""What the master knows, as a pure function of what has happened.

    state = apply(state, event)      the state after an event

The state has the known computers, the waiting wishes and the action under way. What follows from it
is in `decision.py`. No I/O, no clock, no tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from potluck.api.schema import PlanRequest
from potluck.cluster.device_names import device_of
from potluck.cluster.events import ComputerLost, Holds, LinkChanged, StageLost
from potluck.cluster.loss import cannot_load, computer_lost, lost_while_loading
from potluck.cluster.master.constraints import has_constraints
from potluck.cluster.master.vocabulary import (
    Action,
    Answer,
    Began,
    Break,
    Cancel,
    Deploy,
    Event,
    Failed,
    Free,
    GivenUp,
    ImproveWish,
    Loaded,
    LoadWish,
    MakePlan,
    PipelineBroke,
    PlanMade,
    Present,
    PromptWish,
    RecoveryWish,
    Retire,
    Retired,
    ReturnWish,
    Tell,
    UnloadWish,
    Wish,
    Wished,
)
from potluck.errors import PeerError, PeerLostError, PlanError, PotluckError, UsageError
from potluck.ids import NodeId
from potluck.plan.placement import StagePlan
from potluck.wire.messages import DeviceId

MOST_ATTEMPTS = 4  # at the plan of one wish, when computers fail or leave meanwhile

# --- the state


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
    missing: frozenset[NodeId] = frozenset()  # computers lost from the plan that was asked for
    held: Mapping[NodeId, int] = field(default_factory=dict)  # epoch of the layers that each holds
    kept: Mapping[NodeId, int] = field(default_factory=dict)  # epoch of layers for the next plan
    work: MakePlan | Deploy | Retire | None = None  # the action under way
    plan: tuple[StagePlan, ...] | None = None  # made for the first wish, and not in force yet
    deployed: Deployed | None = None
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


# --- the events


def apply(state: State, event: Event) -> State:
    """The state after an event."""
    return _end_first(_check_plan(_apply(state, event)))


def _apply(state: State, event: Event) -> State:
    match event:
        case Wished(wish=UnloadWish() as wish):
            return _unload(state, wish)
        case Wished(wish=wish):
            state = _give_way(state)
            return replace(state, wishes=(*state.wishes, wish))
        case GivenUp(ticket=ticket):
            return _end(state, ticket, None)
        case Present(computers=computers):
            return replace(state, here=computers, weighed=state.weighed & computers)
        case Holds(node_id=node_id, epoch=epoch):
            held = _without(state.held, node_id)
            return replace(state, held=held if epoch is None else {**held, node_id: epoch})
        case LinkChanged(source=source, target=target):
            return replace(state, weighed=state.weighed - {source, target})
        case ComputerLost(node_id=node_id, name=name, how=how):
            held = _without(state.held, node_id)
            state = replace(state, here=state.here - {node_id}, held=held)
            notice = f"{name} {how}. Potluck goes on without it."
            if _is_of(state.before, event):
                state = replace(state, missing=state.missing | {node_id})
            return _lose(state, event, name, notice)
        case StageLost():
            state = replace(state, avoid=state.avoid | {event.node_id})
            return _lose(state, event, event.place, event.notice)
        case PipelineBroke():
            return _change_deployed(state, is_broken=True)
        case Began(action=action):
            return _begin(state, action)
        case PlanMade(stages=stages):
            return _planned(state, stages)
        case Loaded():
            return _loaded(state)
        case Retired():
            return replace(state, work=None)
        case Failed():
            return _fail(state, event)
        case _:
            assert_never(event)


def _unload(state: State, wish: UnloadWish) -> State:
    """End every wish for a model with an error, and the work that is under way for it."""
    state = _give_way(state)
    for other in state.wishes:
        if isinstance(other, LoadWish | PromptWish | RecoveryWish | ImproveWish):
            error = UsageError("The model was unloaded before it was ready.")
            state = _end(state, other.ticket, error)
    return replace(state, wishes=(*state.wishes, wish))


def _give_way(state: State) -> State:
    """End the search for a better plan, because something else is asked for."""
    if not state.is_ready or not state.wishes or not isinstance(state.wishes[0], ImproveWish):
        return state
    return _end(state, state.wishes[0].ticket, None)


def _end(state: State, ticket: int, error: BaseException | None) -> State:
    """End a wish: now, or when the work that was begun for it is undone."""
    if not any(wish.ticket == ticket for wish in state.wishes):
        return state
    is_first = state.wishes[0].ticket == ticket and not _is_shared(state)
    if is_first and (state.work is not None or state.plan is not None or state.ending is not None):
        return replace(state, plan=None, ending=state.ending or Ending(error=error))
    return replace(
        state,
        wishes=tuple(wish for wish in state.wishes if wish.ticket != ticket),
        answers=(*state.answers, Answer(ticket=ticket, error=error)),
    )


def _is_shared(state: State) -> bool:
    """Whether what is done for the first wish is what the second one wants as well."""
    return len(state.wishes) > 1 and all(
        isinstance(wish, PromptWish | RecoveryWish) for wish in state.wishes[:2]
    )


def _lose(state: State, event: ComputerLost | StageLost, name: str, notice: str | None) -> State:
    """Break the deployment if it uses what was lost. The error names the computer.

    The pipeline may have noticed first: then it is another one already, and there is only the notice.
    """
    deployed, before, node_id = state.deployed, state.before, event.node_id
    if deployed is not None and _is_of(deployed, event):
        lost = computer_lost if deployed.is_loaded else lost_while_loading
        loss, told = Break(error=lost(name, event.how)), deployed.told | {node_id}
        state = replace(state, missing=state.missing | {node_id})
        state = _change_deployed(state, loss=loss, told=told, is_broken=True)
    elif before is not None and _is_of(before, event) and node_id not in before.told:
        state = replace(state, before=replace(before, told=before.told | {node_id}))
    else:
        return state
    return replace(state, notices=(*state.notices, *([notice] if notice else [])))


def _is_of(deployed: Deployed | None, lost: ComputerLost | StageLost) -> bool:
    """Whether a plan has a stage of what was lost."""
    if deployed is None or isinstance(lost, ComputerLost):
        return deployed is not None and deployed.uses(lost.node_id)
    is_in_force = lost.epoch in (None, deployed.epoch)
    return is_in_force and deployed.uses(lost.node_id, lost.device)


def _begin(state: State, action: Action) -> State:
    match action:
        case MakePlan():
            # A load that names its computers gets all of them or fails: none can be missing.
            names_all = isinstance(state.wishes[0], LoadWish) and has_constraints(action.request)
            missing = frozenset[NodeId]() if names_all else state.missing
            return replace(state, work=action, failure=None, missing=missing)
        case Deploy(epoch=epoch):
            assert state.plan is not None
            return replace(
                state,
                work=action,
                epoch=epoch,
                plan=None,
                deployed=Deployed(epoch=epoch, stages=state.plan),
                missing=state.missing - _considered(state),
                weighed=_considered(state),
                asked=_asked_by(state, state.wishes[0]),
            )
        case Retire():
            # From here on nothing is loaded. If a plan is ready, its request is the one in force.
            assert state.deployed is not None
            asked = state.asked if state.plan is None else _asked_by(state, state.wishes[0])
            deployed, held = state.deployed, _held_after(state, action)
            before = deployed if deployed.is_broken or deployed.has_failed else None
            return replace(state, work=action, deployed=None, before=before, asked=asked, **held)
        case Cancel():
            assert state.ending is not None
            return replace(state, ending=replace(state.ending, is_told=True))
        case Break():
            return _change_deployed(state, loss=None)
        case Tell():
            return replace(state, notices=state.notices[1:])
        case Answer():
            return _answered(state, action)
        case Free(node_id=node_id):
            held, kept = _without(state.held, node_id), _without(state.kept, node_id)
            return replace(state, held=held, kept=kept)
        case _:
            assert_never(action)


def _considered(state: State) -> frozenset[NodeId]:
    """The computers that could have a stage of the plan. A recovery does not consider all."""
    assert state.plan is not None
    if isinstance(state.wishes[0], RecoveryWish):
        return frozenset(stage.node for stage in state.plan)
    return state.here


def _held_after(state: State, retire: Retire) -> dict[str, Mapping[NodeId, int]]:
    """`held` and `kept` after a deployment is out of force."""
    assert state.deployed is not None
    epoch = state.deployed.epoch
    held = {n: held for n, held in state.held.items() if held != epoch}
    kept = dict.fromkeys(state.deployed.computers & retire.keep & state.here, epoch)
    return {"held": held, "kept": {**state.kept, **kept}}


def _answered(state: State, answer: Answer) -> State:
    if answer in state.answers:
        return replace(state, answers=tuple(a for a in state.answers if a != answer))
    wish, *others = state.wishes
    state = replace(state, wishes=tuple(others))
    if isinstance(wish, UnloadWish):
        return replace(state, asked=None, failure=None, missing=frozenset(), kept={})
    if isinstance(wish, ReturnWish) and is_lent_still(state, wish):
        # The request before it is in force again: the next prompt loads it.
        return replace(state, asked=wish.asked, failure=None, missing=frozenset())
    return state


def _loaded(state: State) -> State:
    state = replace(_change_deployed(state, is_loaded=True), work=None)
    if state.ending is not None:  # the wish was ended when it was too late to cancel the loading
        return _change_deployed(state, has_failed=True)
    granted = Answer(ticket=state.wishes[0].ticket)
    deployed = state.deployed
    assert deployed is not None
    unused = {n: state.kept[n] for n in (state.kept.keys() & state.here) - deployed.computers}
    return replace(
        state,
        wishes=state.wishes[1:],
        answers=(*state.answers, granted),
        held={**state.held, **unused},
        kept={},
        attempts=0,
        tried=None,
        avoid=frozenset(),
    )


def _planned(state: State, stages: tuple[StagePlan, ...] | None) -> State:
    assert isinstance(state.work, MakePlan)
    is_recovery, lost = state.work.is_recovery, state.avoid - state.work.avoid
    state = replace(state, work=None)
    if state.ending is not None:
        return state
    if stages is None:
        return replace(state, weighed=state.here, ending=Ending(error=None))
    if is_recovery and state.attempts < MOST_ATTEMPTS and any(s.node in lost for s in stages):
        return replace(state, attempts=state.attempts + 1)  # a stage was lost meanwhile
    return replace(state, plan=stages)


def _fail(state: State, failed: Failed) -> State:
    if isinstance(state.work, Deploy):
        state = _change_deployed(state, has_failed=True)
    if state.ending is None and _is_worth_another_plan(state, failed):
        culprit = frozenset[NodeId]() if failed.node_id is None else {failed.node_id}
        tried = failed.error if isinstance(failed.error, PotluckError) else None
        state = replace(state, work=None, attempts=state.attempts + 1, tried=tried)
        if tried is not None and culprit and not isinstance(tried, PeerLostError):
            notice = f"{tried.message} Potluck tries to load the model without it."
            state = replace(state, notices=(*state.notices, notice))
        return replace(state, avoid=state.avoid | culprit)
    if state.ending is None and isinstance(state.wishes[0], ImproveWish):
        state = replace(state, weighed=state.here)  # not again until another computer comes
    error = failed.error
    if state.tried is not None and isinstance(error, PlanError | UsageError):
        error = cannot_load(state.tried, error)
    return replace(state, work=None, ending=state.ending or Ending(error=error))


def _is_worth_another_plan(state: State, failed: Failed) -> bool:
    """Whether a prompt or an answer waits that can do without the computer that failed."""
    if state.attempts >= MOST_ATTEMPTS:
        return False
    match state.wishes[0]:
        case RecoveryWish():
            return failed.node_id is not None or isinstance(failed.error, PeerError)
        case PromptWish():
            return isinstance(failed.error, PeerError)
        case LoadWish(request=request):
            return isinstance(failed.error, PeerError) and not has_constraints(request)
        case _:
            return False


def _check_plan(state: State) -> State:
    """Drop a plan that is not in force yet if one of its computers has left: another one is made.

    If the load asked for that computer, its planning waits for it and says why it cannot be had.
    """
    gone = {stage.node for stage in state.plan or ()} - state.here
    if not gone:
        return state
    return replace(state, plan=None, missing=state.missing | gone)


def _end_first(state: State) -> State:
    """Answer the first wish that failed, once its work is undone, and set the error to show."""
    deployed, ending = state.deployed, state.ending
    if ending is None or state.work is not None or (deployed is not None and deployed.has_failed):
        return state
    wish, error = state.wishes[0], ending.error
    if not state.is_ready:  # else the model before it is still loaded, and its request in force
        if isinstance(error, PotluckError):
            # The failed request stays in force: no other model answers in its place.
            state = replace(state, asked=_asked_by(state, wish), failure=error)
        elif isinstance(wish, LoadWish):
            state = replace(state, asked=None)  # an error of another class is ours: it is not shown
    # What one answer cannot have, no other one can: they all wait for the same model.
    is_common = isinstance(wish, RecoveryWish) and error is not None
    ended = [w for w in state.wishes if w is wish or (is_common and isinstance(w, RecoveryWish))]
    return replace(
        state,
        ending=None,
        attempts=0,
        tried=None,
        wishes=tuple(w for w in state.wishes if w not in ended),
        answers=(*state.answers, *(Answer(ticket=w.ticket, error=error) for w in ended)),
    )


def _asked_by(state: State, wish: Wish) -> PlanRequest | None:
    """The request in force while this wish is granted and afterwards.

    A prompt keeps the request in force with its constraints: a computer that is back takes part
    again.
    """
    match wish:
        case LoadWish(request=request):
            return request
        case PromptWish(default=default):
            return state.asked or default
        case RecoveryWish() | ImproveWish() | UnloadWish() | ReturnWish():
            return state.asked
        case _:
            assert_never(wish)


def _change_deployed(state: State, **changes: Any) -> State:
    if state.deployed is None:
        return state
    return replace(state, deployed=replace(state.deployed, **changes))


def _without(held: Mapping[NodeId, int], node_id: NodeId) -> dict[NodeId, int]:
    return {node: epoch for node, epoch in held.items() if node != node_id}


def is_lent_still(state: State, wish: ReturnWish) -> bool:
    """Whether the temporary load is still in force: nothing else was asked for since."""
    epoch = state.deployed.epoch if state.deployed is not None else None
    return state.asked in (wish.lent, None) and (epoch is None or epoch != wish.epoch)
