"""What a computer says of what it does for others, in its window and in the tray. Pure."""

from typing import Final, Literal, NamedTuple

from potluck.api.values.pairing import Pairing
from potluck.api.values.pausing import PauseLength, paused_line
from potluck.api.values.politeness import SAYS, Rule
from potluck.api.values.schema import ClusterState, Computer
from potluck_app import wording
from potluck_app.tokens import Tone

PAUSES: Final[tuple[tuple[PauseLength, str], ...]] = (
    ("hour", "For an hour"),
    ("tomorrow", "Until tomorrow"),
    ("resume", "Until I resume"),
)
RULES: Final[tuple[tuple[Rule, str], ...]] = (
    ("games", "While a game or a film fills the screen"),
    ("battery", "While it runs on its battery"),
    ("memory", "While other programs need the memory"),
    ("heat", "While the processor is too hot"),
    ("activity", "While somebody uses keyboard or mouse"),
)
_COMES: Final = {  # by whether it reads pictures
    ("receiving", False): "Receiving layers",
    ("receiving", True): "Receiving the part that reads pictures",
    ("loading", False): "Loading layers",
    ("loading", True): "Loading the part that reads pictures",
}
FREE_MEMORY: Final = "Gives the memory back at once, and pauses for an hour or until you resume."


class LendView(NamedTuple):
    """What the worker window says about this computer."""

    icon: Literal["heart", "pause", "cluster"]
    tone: Tone
    title: str
    text: str
    address: str = ""  # for the main computer, if it does not find this one
    short: str = ""  # in place of the text where there is little room


def worker_requests(state: ClusterState) -> list[Pairing]:
    """Return the pairings in which a main computer waits for the person's decision here."""
    return [p for p in state.pairings if p.role == "worker" and p.state in ("confirm", "accepted")]


def lend_view(state: ClusterState) -> LendView:
    """Return what this computer does for others, as one title and one sentence."""
    me = state.me
    if state.node.leaving:
        names = wording.listing(state.node.lent_to)
        text = f"This computer still helps {names}, for at most 30 seconds."
        return LendView("pause", "warn", "Leaving", text)
    if state.node.paused:
        until = state.node.paused_until
        text = "This computer lends nothing until you resume."
        if until is not None:
            text = "This computer lends nothing until then, or until you resume."
        return LendView("pause", "warn", paused_line(until), text)
    if state.node.withheld is not None:
        text = f"This computer {SAYS[state.node.withheld]}. It helps again a minute after that."
        return LendView("pause", "warn", "Paused by itself", text)
    if state.node.lent_to:
        names = wording.listing(state.node.lent_to)
        if me is not None and me.state in ("receiving", "loading"):
            what = _COMES[me.state, state.node.lent_as == "tower"]
            share = f" · {wording.percent(me.progress)}" if me.progress is not None else ""
            return LendView("heart", "accent", f"Helping {names}", what + share)
        text, short = _computes(state, me)
        return LendView("heart", "ok", f"Helping {names}", text, short=short)
    address = next(iter(state.node.addresses), "")
    if state.node.member_of:
        names = wording.listing(state.node.member_of)
        text = "It connects by itself as soon as Potluck runs there."
        return LendView("cluster", "accent", f"Waiting for {names}", text, address)
    text = "Open Potluck on your main computer. It finds this one by itself."
    return LendView("cluster", "accent", "Ready to join", text, address)


def _computes(state: ClusterState, me: Computer | None) -> tuple[str, str]:
    """What this computer does for each word of an answer there: as a sentence, and in few words."""
    # A main computer that is older does not say which model it is.
    model = wording.model_name(state.node.lent_model) if state.node.lent_model else ""
    named = model or "the model"
    if state.node.lent_as == "tower":
        return f"It reads pictures for {named}. Other computers compute the layers.", "Pictures"
    if me is None or me.layers is None:
        return "It is ready, and computes nothing just now.", "Ready"
    count, of = state.node.lent_layers, state.node.lent_of
    if count is None:  # its node is older than this window, and says where they begin and end
        count = me.layers[1] - me.layers[0]
    short = wording.plural(count, "layer", "layers")
    if not of:
        return short, short
    if not count:
        text = f"It holds the vocabulary of {named}. Other computers compute the layers."
        return text, "Vocabulary"
    if model and state.node.lent_as == "model":
        return f"It computes {model} alone.", model
    shared = "its part of " if state.node.lent_as == "shares" else ""
    text = f"For each word of an answer, it computes {shared}{count} of the {of} layers of {named}."
    return text, f"{count} of {of} layers" + (f" of {model}" if model else "")
