"""What the master knows, as a pure function of what has happened.

    state = apply(state, event)      the state after an event

No I/O, no clock, no tasks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import ComputerLost, DeviceChanged, Holds, LinkChanged, StageLost
from potluck.cluster.loss import cannot_load
from potluck.cluster.master.constraints import has_constraints
from potluck.cluster.master.losses import MOST_ATTEMPTS, doubt, is_of, lose
from potluck.cluster.master.state import (
    Deployed,
    Ending,
    State,
    change_deployed,
    is_lent_still,
    leavers,
)
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
    Promote,
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
from potluck.errors import (
    OutOfMemoryError,
    PeerError,
    PeerLostError,
    PlanError,
    PotluckError,
    UsageError,
)
from potluck.ids import NodeId
from potluck.plan.stages import StagePlan


def apply(state: State, event: Event) -> State:
    """The state after an event."""
    return _end_first(_check_plan(_apply(state, event)))


def _apply(state: State, event: Event) -> State:
    match event:
        case Wished(wish=UnloadWish() as wish):
            return _unload(state, wish)
        case Wished(wish=PromptWish(ticket=ticket)) if _is_improving(state):
            return replace(state, answers=(*state.answers, Answer(ticket=ticket)))
        case Wished(wish=wish):
            state = _give_way(state)
            return replace(state, wishes=(*state.wishes, wish))
        case GivenUp(ticket=ticket):
            return _end(state, ticket, None)
        case Present(computers=computers, leaving=leaving, pauses=pauses, replica=replica):
            state = replace(
                state,
                here=computers,
                weighed=state.weighed & computers,
                leaving=leaving,
                pauses=pauses,
                replica=replica,
                needed=state.needed & leaving,
            )
            return _give_way(state) if _is_too_slow(state) else state
        case Holds(node_id=node_id, epoch=epoch):
            held = _without(state.held, node_id)
            return replace(state, held=held if epoch is None else {**held, node_id: epoch})
        case LinkChanged(source=source, target=target):
            return replace(state, weighed=state.weighed - {source, target})
        case DeviceChanged(node_id=node_id):
            return replace(state, weighed=state.weighed - {node_id})
        case ComputerLost(node_id=node_id, name=name, how=how):
            held = _without(state.held, node_id)
            state = replace(state, here=state.here - {node_id}, held=held)
            notice = f"{name} {how}. Potluck goes on without it."
            if is_of(state.before, event):
                state = replace(state, missing=state.missing | {node_id})
            return lose(state, event, name, notice)
        case StageLost(node_id=node_id):
            state = replace(state, avoid=state.avoid | {node_id})
            return doubt(lose(state, event, event.place, event.notice), event)
        case PipelineBroke():
            return change_deployed(state, is_broken=True)
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
    """End the search for a better plan, because something else is asked for.

    The plan in force may be broken: then an answer waits for a recovery, which is not to wait for the
    search. A better plan that is being put into force goes on.
    """
    is_searched = state.deployed is not None and state.deployed.is_loaded
    if not is_searched or not state.wishes or not isinstance(state.wishes[0], ImproveWish):
        return state
    return _end(state, state.wishes[0].ticket, None)


def _is_too_slow(state: State) -> bool:
    """Whether a faster plan is made, which may take its time, while a computer is about to leave."""
    is_handover = isinstance(state.work, MakePlan) and state.work.is_handover
    return _is_improving(state) and not is_handover and bool(leavers(state) - state.needed)


def _is_improving(state: State) -> bool:
    """Whether another plan is made beside the one in force, which answers prompts meanwhile."""
    return state.is_ready and isinstance(state.work, MakePlan) and state.work.is_improvement


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
            missing = state.missing | leavers(state) if state.plan is not None else state.missing
            return replace(
                state,
                work=action,
                deployed=None,
                before=before,
                asked=asked,
                missing=missing,
                **held,
            )
        case Cancel():
            assert state.ending is not None
            return replace(state, ending=replace(state.ending, is_told=True))
        case Break():
            return change_deployed(state, loss=None)
        case Promote():
            return _promote(state)
        case Tell():
            return replace(state, notices=state.notices[1:])
        case Answer():
            return _answered(state, action)
        case Free(node_id=node_id):
            held, kept = _without(state.held, node_id), _without(state.kept, node_id)
            return replace(state, held=held, kept=kept)
        case _:
            assert_never(action)


def _promote(state: State) -> State:
    """Another replica is the deployment now. Who is missing from the one before is planned for beside it."""
    before, stages = state.deployed, state.replica
    assert before is not None
    assert stages is not None
    if not before.is_broken:
        state = _tell_leaving(state, "Its answers go on at another replica.")
    if state.work is not None and not isinstance(state.wishes[0], LoadWish):
        # The plan of a recovery or a hand-over would take the replica that answers out of force.
        state = replace(state, ending=state.ending or Ending(error=None))
    return replace(
        state,
        deployed=Deployed(epoch=before.epoch, stages=stages, is_loaded=True),
        before=before if before.is_broken else None,
        replica=None,
        missing=state.missing - before.computers,
    )


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
    connected = state.here | state.leaving
    kept = dict.fromkeys(state.deployed.computers & retire.keep & connected, epoch)
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
    state = replace(change_deployed(state, is_loaded=True), work=None)
    if state.ending is not None:  # the wish was ended when it was too late to cancel the loading
        return change_deployed(state, has_failed=True)
    granted = Answer(ticket=state.wishes[0].ticket)
    deployed = state.deployed
    assert deployed is not None
    connected = state.here | state.leaving
    unused = {n: state.kept[n] for n in (state.kept.keys() & connected) - deployed.computers}
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
    is_handover = state.work.is_handover
    state = replace(state, work=None)
    if state.ending is not None:
        return state
    if is_handover:
        state = _tell_leaving(state, "Potluck goes on without it.")
    if stages is None:
        return replace(state, weighed=state.here, ending=Ending(error=None))
    if is_recovery and state.attempts < MOST_ATTEMPTS and any(s.node in lost for s in stages):
        return replace(state, attempts=state.attempts + 1)  # a stage was lost meanwhile
    return replace(state, plan=stages)


def _fail(state: State, failed: Failed) -> State:
    if isinstance(state.work, Deploy):
        state = change_deployed(state, has_failed=True)
    if state.ending is None and _is_worth_another_plan(state, failed):
        culprit = frozenset[NodeId]() if failed.node_id is None else {failed.node_id}
        tried = failed.error if isinstance(failed.error, PotluckError) else None
        state = replace(state, work=None, attempts=state.attempts + 1, tried=tried)
        if tried is not None and culprit and not isinstance(tried, PeerLostError):
            notice = f"{tried.message} Potluck tries to load the model without it."
            state = replace(state, notices=(*state.notices, notice))
        return replace(state, avoid=state.avoid | culprit)
    error = failed.error
    if state.ending is None and isinstance(state.wishes[0], ImproveWish):
        if not (isinstance(state.work, MakePlan) and state.work.is_handover):
            state = replace(state, weighed=state.here)  # not again until another computer comes
        elif isinstance(error, PlanError | OutOfMemoryError):
            state = _tell_leaving(state, f"The model does not fit without it: {error.message}")
            state = replace(state, needed=state.needed | leavers(state))
    if state.tried is not None and isinstance(error, PlanError | UsageError):
        error = cannot_load(state.tried, error)
    return replace(state, work=None, ending=state.ending or Ending(error=error))


def _tell_leaving(state: State, what_follows: str) -> State:
    """Show why computers of the plan in force leave, once for each."""
    assert state.deployed is not None
    leaving = leavers(state) - state.deployed.told
    names = {stage.name: stage.node for stage in state.deployed.stages if stage.node in leaving}
    whys = (f"{name} {state.pauses.get(node, 'leaves')}" for name, node in names.items())
    notices = tuple(f"{why}. {what_follows}" for why in whys)
    state = change_deployed(state, told=state.deployed.told | leaving)
    return replace(state, notices=(*state.notices, *notices))


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


def _without(held: Mapping[NodeId, int], node_id: NodeId) -> dict[NodeId, int]:
    return {node: epoch for node, epoch in held.items() if node != node_id}
