"""What the end of an action makes of the master's state: a plan was made or put into force, or the action has failed."""

from dataclasses import replace
from typing import assert_never

from potluck.api.values.schema import PlanRequest
from potluck.cluster.loss import cannot_load
from potluck.cluster.master.constraints import has_constraints
from potluck.cluster.master.losses import MOST_ATTEMPTS
from potluck.cluster.master.state import Ending, State, change_deployed, leavers
from potluck.cluster.master.vocabulary import (
    Answer,
    Deploy,
    Failed,
    ImproveWish,
    LoadWish,
    MakePlan,
    PromptWish,
    RecoveryWish,
    ReturnWish,
    UnloadWish,
    Wish,
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


def plan_made(state: State, stages: tuple[StagePlan, ...] | None) -> State:
    """A plan was made; None: the one in force stays."""
    assert isinstance(state.work, MakePlan)
    is_recovery, lost = state.work.is_recovery, state.avoid - state.work.avoid
    is_handover = state.work.is_handover
    state = replace(state, work=None)
    if state.ending is not None:
        return state
    if is_handover:
        state = tell_leaving(state, "Potluck goes on without it.")
    if stages is None:
        return replace(state, weighed=state.here, ending=Ending(error=None))
    if is_recovery and state.attempts < MOST_ATTEMPTS and any(s.node in lost for s in stages):
        return replace(state, attempts=state.attempts + 1)  # a stage was lost meanwhile
    return replace(state, plan=stages)


def has_failed(state: State, failed: Failed) -> State:
    """The action under way has failed: another plan is made, or its wish ends with the error."""
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
            state = tell_leaving(state, f"The model does not fit without it: {error.message}")
            state = replace(state, needed=state.needed | leavers(state))
    if state.tried is not None and isinstance(error, PlanError | UsageError):
        error = cannot_load(state.tried, error)
    return replace(state, work=None, ending=state.ending or Ending(error=error))


def was_loaded(state: State) -> State:
    """The plan is in force, and the first wish is granted."""
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


def tell_leaving(state: State, what_follows: str) -> State:
    """Show why computers of the plan in force leave, once for each."""
    assert state.deployed is not None
    leaving = leavers(state) - state.deployed.told
    names = {stage.name: stage.node for stage in state.deployed.stages if stage.node in leaving}
    whys = (f"{name} {state.pauses.get(node, 'leaves')}" for name, node in names.items())
    notices = tuple(f"{why}. {what_follows}" for why in whys)
    state = change_deployed(state, told=state.deployed.told | leaving)
    return replace(state, notices=(*state.notices, *notices))


def end_first(state: State) -> State:
    """Answer the first wish that failed, once its work is undone, and set the error to show."""
    deployed, ending = state.deployed, state.ending
    if ending is None or state.work is not None or (deployed is not None and deployed.has_failed):
        return state
    wish, error = state.wishes[0], ending.error
    if not state.is_ready:  # else the model before it is still loaded, and its request in force
        if isinstance(error, PotluckError):
            # The failed request stays in force: no other model answers in its place.
            state = replace(state, asked=asked_by(state, wish), failure=error)
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


def asked_by(state: State, wish: Wish) -> PlanRequest | None:
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
