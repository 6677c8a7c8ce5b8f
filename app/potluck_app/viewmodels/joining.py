"""What is shown of computers that could join this home. Pure."""

from typing import Literal, NamedTuple, TypeAlias

from potluck.api.values.pairing import Pairing
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.viewmodels.cluster import is_member

JoinStep: TypeAlias = Literal["found", "asking", "confirm", "waiting", "refused", "failed"]


class JoinCard(NamedTuple):
    """A computer that could join."""

    node_id: str
    name: str
    step: JoinStep
    title: str
    text: str
    code: str | None
    pairing_id: str | None


def join_cards(state: ClusterState, ignored: frozenset[str] = frozenset()) -> list[JoinCard]:
    """Return the computers that could join, each with its next step."""
    pairings = {p.node_id: p for p in state.pairings if p.role == "master"}
    cards: list[JoinCard] = []
    for computer in state.computers:
        if is_member(computer) or computer.node_id in ignored:
            continue
        pairing = pairings.get(computer.node_id)
        if pairing is None and not computer.joinable:
            continue
        cards.append(_join_card(computer.node_id, computer.name, pairing))
    # A computer that was asked by its address may be out of the reach of discovery.
    known = ignored | {computer.node_id for computer in state.computers}
    cards += [
        _join_card(pairing.node_id, pairing.name, pairing)
        for pairing in pairings.values()
        if pairing.node_id not in known and pairing.state != "paired"
    ]
    return cards


def _join_card(node_id: str, name: str, pairing: Pairing | None) -> JoinCard:
    step, text = _join_step(name, pairing)
    code = pairing.code if pairing is not None and step in ("confirm", "waiting") else None
    return JoinCard(
        node_id=node_id,
        name=name,
        step=step,
        title=f"{name} wants to join",
        text=text,
        code=wording.spaced_code(code) if code else None,
        pairing_id=pairing.id if pairing is not None else None,
    )


def _join_step(name: str, pairing: Pairing | None) -> tuple[JoinStep, str]:
    if pairing is None:
        return "found", "Found on your network"
    match pairing.state:
        case "asking":
            return "asking", f"Asking {name} for its code…"
        case "confirm":
            return "confirm", "Found on your network · check that it shows the code"
        case "accepted":
            return "waiting", f"Now click Allow on {name}, which shows the code"
        case "refused":
            return "refused", f"{name} said no."
        case "failed":
            return "failed", pairing.message or f"{name} could not be added."
        case "paired":
            return "waiting", f"{name} is joining…"
