"""What the master knows, as a pure function of what has happened.

    state = apply(state, event)      the state after an event

No I/O, no clock, no tasks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from potluck.cluster.events import ComputerLost, DeviceChanged, Holds, LinkChanged, StageLost
from potluck.cluster.master.constraints import has_constraints
from potluck.cluster.master.losses import doubt, is_of, lose
from potluck.cluster.master.outcomes import (
    asked_by,
    end_first,
    has_failed,
    plan_made,
    tell_leaving,
    was_loaded,
)
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
    Wished,
)
from potluck.errors import (
    UsageError,
)
from potluck.ids import NodeId


def apply(state: State, event: Event) -> State:
    """The state after an event."""
    return end_first(_check_plan(_apply(state, event)))


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
            return plan_made(state, stages)
        case Loaded():
            return was_loaded(state)
        case Retired():
            return replace(state, work=None)
        case Failed():
            return has_failed(state, event)
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
                asked=asked_by(state, state.wishes[0]),
            )
        case Retire():
            # From here on nothing is loaded. If a plan is ready, its request is the one in force.
            assert state.deployed is not None
            asked = state.asked if state.plan is None else asked_by(state, state.wishes[0])
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
        state = tell_leaving(state, "Its answers go on at another replica.")
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


def _check_plan(state: State) -> State:
    """Drop a plan that is not in force yet if one of its computers has left: another one is made.

    If the load asked for that computer, its planning waits for it and says why it cannot be had.
    """
    gone = {stage.node for stage in state.plan or ()} - state.here
    if not gone:
        return state
    return replace(state, plan=None, missing=state.missing | gone)


def _without(held: Mapping[NodeId, int], node_id: NodeId) -> dict[NodeId, int]:
    return {node: epoch for node, epoch in held.items() if node != node_id}
