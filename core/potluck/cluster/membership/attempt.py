"""One pairing by sight, as its clients see it."""

import asyncio
from dataclasses import dataclass

from potluck.api.values.pairing import Pairing as PairingView
from potluck.api.values.pairing import PairingState as ViewState
from potluck.errors import PairingError
from potluck.ids import NodeId
from potluck.net.pairing_link import PairingLink
from potluck.wire.pairing import Pairing, PairingState

_VIEW_STATES: dict[PairingState, ViewState] = {
    PairingState.COMPARING: "confirm",
    PairingState.ACCEPTED_THERE: "confirm",
    PairingState.ACCEPTED_HERE: "accepted",
    PairingState.AGREED: "accepted",
    PairingState.ISSUED: "accepted",
    PairingState.PAIRED: "paired",
    PairingState.FAILED: "failed",
}


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """A pairing that is under way, or has ended a moment ago."""

    id: str
    machine: Pairing
    node_id: NodeId
    name: str
    link: PairingLink
    had_code: bool = False  # whether there were digits to compare
    compared: asyncio.Event  # set when there are digits to compare, or the pairing has ended

    def view(self) -> PairingView:
        machine = self.machine
        state = _VIEW_STATES.get(machine.state, "asking")
        message = None
        if isinstance(machine.outcome, PairingError):
            message = machine.outcome.message
            if machine.outcome.data.get("kind") == "refused":
                state = "refused"
        return PairingView(
            id=self.id,
            node_id=self.node_id,
            name=machine.peer_name or self.name,
            role=machine.role,
            state=state,
            code=machine.code.replace(" ", "") if machine.code else None,
            message=message,
        )
