"""What the loss of a computer, or of a stage process, makes of the master's state."""

from dataclasses import replace
from typing import Protocol

from potluck.cluster.events import ComputerLost, StageLost
from potluck.cluster.loss import computer_lost, lost_while_loading
from potluck.cluster.master.state import State, change_deployed
from potluck.cluster.master.vocabulary import Break, Deploy, RecoveryWish
from potluck.ids import NodeId
from potluck.wire.messages import DeviceId

MOST_ATTEMPTS = 4  # at the plan of one wish, when computers fail or leave meanwhile


def lose(state: State, event: ComputerLost | StageLost, name: str, notice: str | None) -> State:
    """Break the deployment if it uses what was lost. The error names the computer.

    The pipeline may have noticed first: then it is another one already, and there is only the notice.
    """
    deployed, before, node_id = state.deployed, state.before, event.node_id
    if deployed is not None and is_of(deployed, event):
        lost = computer_lost if deployed.is_loaded else lost_while_loading
        if node_id in deployed.told:
            notice = None
        drains = isinstance(event, ComputerLost) and event.is_connected
        loss = Break(error=lost(name, event.how), drains=drains)
        told = deployed.told | {node_id}
        state = replace(state, missing=state.missing | {node_id})
        state = change_deployed(state, loss=loss, told=told, is_broken=True)
    elif before is not None and is_of(before, event) and node_id not in before.told:
        state = replace(state, before=replace(before, told=before.told | {node_id}))
    else:
        return state
    return replace(state, notices=(*state.notices, *([notice] if notice else [])))


def doubt(state: State, lost: StageLost) -> State:
    """Plan a recovery again if its plan has a computer whose stage process has just died.

    A pipeline often breaks before it is known whose process died. The new plan would wait until that
    process is started again, which takes seconds.
    """
    deployed = state.deployed
    is_recovery = bool(state.wishes) and isinstance(state.wishes[0], RecoveryWish)
    if not is_recovery or state.attempts >= MOST_ATTEMPTS:
        return state
    if any(stage.node == lost.node_id for stage in state.plan or ()):
        return replace(state, plan=None, attempts=state.attempts + 1)
    is_loading = deployed is not None and isinstance(state.work, Deploy) and deployed.loss is None
    if deployed is not None and is_loading and deployed.uses(lost.node_id, lost.device):
        loss = Break(error=lost_while_loading(lost.place, lost.how))
        return change_deployed(state, loss=loss, is_broken=True)
    return state


class HasStages(Protocol):
    """A plan that is in force: what the state knows of it, or its deployment."""

    @property
    def epoch(self) -> int: ...
    def uses(self, node_id: NodeId, device: DeviceId | None = None) -> bool: ...


def is_of(deployed: HasStages | None, lost: ComputerLost | StageLost) -> bool:
    """Whether a plan has a stage of what was lost."""
    if deployed is None or isinstance(lost, ComputerLost):
        return deployed is not None and deployed.uses(lost.node_id)
    is_in_force = lost.epoch in (None, deployed.epoch)
    return is_in_force and deployed.uses(lost.node_id, lost.device)
