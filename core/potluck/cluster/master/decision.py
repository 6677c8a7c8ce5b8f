"""What the master begins next, as a pure function of its state.

    action = next_action(state)      the action to begin now; None: wait for the next event

`Master` begins the action, says so (`Began`), and reports its end as an event. Only one of the long
actions (`MakePlan`, `Deploy`, `Retire`) is under way at a time, always for the first wish.

Every rule about which model is loaded, and when, is here and in `transitions.py`.
"""

from collections.abc import Mapping
from typing import assert_never

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.constraints import without_constraints
from potluck.cluster.master.improvement import improvement
from potluck.cluster.master.state import Deployed, State, is_lent_still, leavers
from potluck.cluster.master.vocabulary import (
    Action,
    Answer,
    Cancel,
    Deploy,
    Free,
    ImproveWish,
    LoadWish,
    MakePlan,
    Promote,
    PromptWish,
    RecoveryWish,
    Retire,
    ReturnWish,
    Tell,
    UnloadWish,
    Wish,
)
from potluck.errors import UsageError
from potluck.ids import NodeId


def next_action(state: State) -> Action | None:
    """The action to begin now. None: wait for the next event."""
    deployed = state.deployed
    if deployed is not None and deployed.loss is not None:
        return deployed.loss  # comes first: an answer may be waiting for the lost computer
    if _is_to_promote(state):
        return Promote()
    if state.notices:
        return Tell(text=state.notices[0])
    if state.answers:
        return state.answers[0]
    if state.work is not None:
        is_wanted = state.ending is None or state.ending.is_told
        return None if is_wanted or isinstance(state.work, Retire) else Cancel()
    if deployed is not None and deployed.has_failed:
        # A better plan that failed has broken the one before, so answers want a recovery next.
        is_needed = state.ending is None or isinstance(state.wishes[0], ImproveWish)
        return Retire(keep=deployed.computers if is_needed else frozenset())
    if state.plan is not None:
        if deployed is not None:
            return Retire(keep=_kept(state, deployed))
        return Deploy(epoch=state.epoch + 1)
    if state.wishes:
        return _next_for(state, state.wishes[0])
    return _next_to_free(state)


def _is_to_promote(state: State) -> bool:
    """Whether another replica takes the place of the deployment, whose computers are lost or leave."""
    deployed = state.deployed
    if deployed is None or state.replica is None or state.plan is not None:
        return False
    if not deployed.is_loaded or deployed.has_failed or isinstance(state.work, Deploy | Retire):
        return False
    return deployed.is_broken or bool(leavers(state))


def _kept(state: State, deployed: Deployed) -> frozenset[NodeId]:
    """The computers that keep their layers until the plan that was made is in force.

    While answers wait, or the same model is cut in another way, these are all: conversations move with their layers, and
    what no stage needs is freed afterwards.
    """
    assert state.plan is not None
    planned = frozenset(stage.node for stage in state.plan)
    match state.wishes[0]:
        case RecoveryWish() | ImproveWish():
            return planned | deployed.computers
        case LoadWish(request=request) if _is_of_same_model(request, state.asked):
            return planned | deployed.computers
        case _:
            return planned


def _is_of_same_model(request: PlanRequest, other: PlanRequest | None) -> bool:
    return other is not None and (request.model, request.shape) == (other.model, other.shape)


def _next_for(state: State, wish: Wish) -> Action:
    """The next action for the first wish. A new plan is begun here and nowhere else."""
    granted = Answer(ticket=wish.ticket)
    match wish:
        case LoadWish():
            is_as_asked = state.is_ready and wish.request == state.asked and not wish.anew
            if is_as_asked and not can_improve(state):
                return granted
            return MakePlan(
                request=wish.request,
                settle=not state.attempts,
                check=wish.check,
                avoid=state.avoid if state.attempts else frozenset(),
            )
        case PromptWish():
            if state.is_ready:
                return granted
            # In the middle of a chat, do not wait for a worker that was just lost.
            return MakePlan(
                request=possible(state, state.asked or wish.default),
                settle=not state.missing,
                avoid=state.avoid if state.attempts else frozenset(),
            )
        case RecoveryWish():
            if state.is_ready:
                return granted
            if state.asked is None:
                error = UsageError("The model was unloaded while it was answering.")
                return Answer(ticket=wish.ticket, error=error)
            request = without_constraints(state.asked) if state.missing else state.asked
            return MakePlan(request=request, settle=False, is_recovery=True, avoid=state.avoid)
        case ImproveWish():
            return improvement(state) or granted
        case UnloadWish(keeps_layers=keeps_layers):
            if state.deployed is not None:
                return Retire(keep=state.deployed.computers if keeps_layers else frozenset())
            if keeps_layers:
                return granted
            return _free(state.kept) or _free(state.held) or granted
        case ReturnWish():
            is_to_go = state.deployed is not None and is_lent_still(state, wish)
            return Retire(keep=frozenset()) if is_to_go else granted
        case _:
            assert_never(wish)


def _next_to_free(state: State) -> Action | None:
    """If nobody waits, free the layers that computers hold of plans that are over.

    Layers that were kept for a plan that then failed are freed at once. Layers of a plan that this
    master does not know stay until another plan runs: a master that was restarted may make the same
    plan again, and then finds the layers loaded.
    """
    deployed = state.deployed
    if deployed is None:
        return _free(state.kept)
    if not deployed.is_ready:
        return None
    others = {n: epoch for n, epoch in state.held.items() if not deployed.uses(n)}
    # Who reads prompts for the plan has layers of its epoch.
    return _free({n: epoch for n, epoch in others.items() if epoch != deployed.epoch})


def _free(held: Mapping[NodeId, int]) -> Free | None:
    """Free the layers of the first of these computers."""
    return next((Free(node_id=n, epoch=epoch) for n, epoch in held.items()), None)


def can_improve(state: State) -> bool:
    """Whether a computer has come back that is missing from the plan in force."""
    return bool(state.missing & state.here)


def possible(state: State, request: PlanRequest) -> PlanRequest:
    """The request as it is possible now: without constraints if a computer is missing."""
    return request if state.missing <= state.here else without_constraints(request)
