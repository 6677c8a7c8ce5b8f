"""What the Cluster page and the worker window show of a ClusterState. Pure."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from potluck.api.pausing import PauseLength, paused_line
from potluck.api.politeness import SAYS, Rule
from potluck.api.schema import ClusterState, Computer, ModelState, Pairing, StageView
from potluck_app import wording
from potluck_app.tokens import Tone

Choice: TypeAlias = Literal["rename", "pause", "resume", "limit", "test", "main", "remove"]
"""What the person can do with a computer."""
JoinStep: TypeAlias = Literal["found", "asking", "confirm", "waiting", "refused", "failed"]

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
FREE_MEMORY: Final = "Gives the memory back at once, and pauses for an hour or until you resume."

ON_ITS_WAY: Final = frozenset({"preparing", "streaming", "loading"})  # of a model
_NAMED = 3  # so many computers are named, more are counted

_PILLS: Final[dict[str, tuple[str, Tone]]] = {
    "found": ("Found", "neutral"),
    "asking": ("Asking", "accent"),
    "pairing": ("Pairing", "accent"),
    "ready": ("Ready", "ok"),
    "receiving": ("Receiving layers", "accent"),
    "loading": ("Loading", "accent"),
    "running": ("Running", "ok"),
    "paused": ("Paused", "warn"),
    "lost": ("Lost", "err"),
    "version_differs": ("Version differs", "warn"),
    "blocked": ("Blocked", "err"),
}
_LAPTOP_WORDS: Final = ("book", "laptop", "notebook", "thinkpad", "xps", "surface", "portable")
# States whose `detail` is a sentence for the person, shown in place of memory and link.
_EXPLAINED: Final = frozenset({"lost", "version_differs", "blocked", "paused"})


def _range(start: int, stop: int) -> str:
    if stop - start == 1:
        return str(start)
    return f"{start}–{stop - 1}"  # noqa: RUF001 - ranges are written with an en dash


class ComputerCard(NamedTuple):
    """One computer of the grid."""

    node_id: str
    name: str
    hardware: str
    icon: Literal["desktop", "laptop"]
    color: int
    pill: str
    tone: Tone
    memory: str
    used: float  # share of its memory that the model has, 0 to 1
    limit: float  # share of its memory that it lends at most
    lends: int  # bytes that it lends at most
    link: str
    holds: str  # which layers, and which spare copies
    detail: str  # a sentence in place of the figures
    receiving: str  # "1.2 of 3.4 GB · 420 Mbit/s · 20 s left", while it receives
    progress: float | None
    removable: bool
    is_self: bool
    paused: bool  # by its owner if it is this computer, else by this home
    online: bool


class Segment(NamedTuple):
    """The part of one computer in the layer bar."""

    name: str
    start: int
    stop: int
    color: int
    tip: str

    @property
    def text(self) -> str:
        """The range of layers as people count it, both ends included."""
        return _range(self.start, self.stop)


class ModelCard(NamedTuple):
    """The model that is loaded or being loaded."""

    name: str
    pill: str
    tone: Tone
    figures: str
    segments: tuple[Segment, ...]
    progress: float | None
    line: str  # what is happening, or why it failed
    explanation: str


class JoinCard(NamedTuple):
    """A computer that could join."""

    node_id: str
    name: str
    step: JoinStep
    title: str
    text: str
    code: str | None
    pairing_id: str | None


class LendView(NamedTuple):
    """What the worker window says about this computer."""

    icon: Literal["heart", "pause", "cluster"]
    tone: Tone
    title: str
    text: str
    address: str = ""  # for the main computer, if it does not find this one


def pill(computer: Computer) -> tuple[str, Tone]:
    """Return the state of a computer in one or two words, and their tone."""
    text, tone = _PILLS[computer.state]
    if computer.progress is not None and computer.state in ("receiving", "loading"):
        text = f"{text} {wording.percent(computer.progress)}"
    return text, tone


def is_member(computer: Computer) -> bool:
    """Return whether a computer belongs to this home: this computer, or a paired one."""
    return computer.is_self or computer.paired


def has_helper(state: ClusterState) -> bool:
    """Return whether another computer of this home is ready to help."""
    return any(is_member(c) and not c.is_self and c.state == "ready" for c in state.computers)


def header(state: ClusterState) -> str:
    """Return the header: `Desk and Laptop connected · 76 GB usable for models · 1 waiting`."""
    members = [c for c in state.computers if is_member(c) and (c.online or c.is_self)]
    usable = sum(d.memory_free for c in members if c.state != "paused" for d in c.devices)
    names = [computer.name for computer in members]
    few = len(names) <= _NAMED
    who = wording.listing(names) if few else f"{len(names)} computers"
    parts = [f"{who} connected"] if names else ["Starting…"]
    if all(c.is_self for c in members) and members:
        parts = ["Only this computer is connected"]
    if usable:
        parts.append(f"{wording.size(usable)} usable for models")
    waiting = sum(1 for c in state.computers if c.joinable and not is_member(c))
    if waiting:
        parts.append(f"{waiting} waiting")
    return " · ".join(parts)


def computer_cards(state: ClusterState) -> list[ComputerCard]:
    """Return the computers of the home, this computer first, then by name."""
    members = [computer for computer in state.computers if is_member(computer)]
    members.sort(key=lambda computer: (not computer.is_self, computer.name.casefold()))
    return [_computer_card(state, computer) for computer in members]


def _computer_card(state: ClusterState, computer: Computer) -> ComputerCard:
    text, tone = pill(computer)
    total = sum(device.memory_total for device in computer.devices)
    lent = computer.memory_lent
    lends = min(max(sum(device.memory_free for device in computer.devices), lent), total)
    transfer = next((t for t in state.transfers if t.node_id == computer.node_id), None)
    receiving = ""
    if transfer is not None and transfer.sent < transfer.total:
        receiving = f"{wording.size(transfer.sent)} of {wording.size(transfer.total)}"
        if transfer.bytes_per_s:
            receiving += f" · {wording.rate(transfer.bytes_per_s)}"
        if transfer.eta_s is not None:
            receiving += f" · {wording.duration(transfer.eta_s)} left"
    gpu = all(device.kind == "cuda" for device in computer.devices)
    kind = "GPU memory lent" if gpu else "lent"
    return ComputerCard(
        node_id=computer.node_id,
        name=computer.name,
        hardware=wording.hardware_line(computer),
        icon=_icon(computer.name),
        color=computer.color,
        pill=text,
        tone=tone,
        memory=f"{wording.gigabytes(lent)} of {wording.size(lends)} {kind}" if total else "",
        used=min(lent / total, 1.0) if total else 0.0,
        limit=lends / total if total else 0.0,
        lends=lends,
        link="" if computer.is_self else wording.link_line(computer),
        holds=_holds(computer),
        detail=(computer.detail or "") if computer.state in _EXPLAINED else "",
        receiving=receiving,
        progress=computer.progress if computer.state in ("receiving", "loading") else None,
        removable=computer.paired and not computer.is_self,
        is_self=computer.is_self,
        paused=state.node.paused if computer.is_self else computer.set_aside,
        online=computer.online,
    )


def _holds(computer: Computer) -> str:
    parts: list[str] = []
    if computer.layers is not None and computer.layers[1] > computer.layers[0]:
        parts.append(f"Layers {_range(*computer.layers)}")
    if (spare := computer.spare) is not None:
        layers = wording.plural(spare.layers, "layer", "layers")
        so_far = "" if spare.stored >= spare.nbytes else f"{wording.size(spare.stored)} of "
        parts.append(f"spare copies of {layers} on its disk, {so_far}{wording.size(spare.nbytes)}")
    line = " · ".join(parts)
    return line[:1].upper() + line[1:]


def _icon(name: str) -> Literal["desktop", "laptop"]:
    folded = name.casefold()
    return "laptop" if any(word in folded for word in _LAPTOP_WORDS) else "desktop"


def model_card(state: ClusterState) -> ModelCard | None:
    """Return the card of the model, or None if no model is loaded or being loaded."""
    model = state.model
    if model.state == "none":
        return None
    words: dict[str, tuple[str, Tone]] = {
        "preparing": ("Preparing", "accent"),
        "streaming": ("Sending layers", "accent"),
        "loading": ("Loading", "accent"),
        "ready": ("Ready", "ok"),
        "failed": ("Failed", "err"),
    }
    text, tone = words[model.state]
    if model.state == "ready" and model.answering:
        text, tone = "Generating", "accent"
    segments = _segments(state)
    figures: list[str] = []
    figures += _speeds(model)
    if segments:
        figures.append(wording.plural(max(s.stop for s in segments), "layer", "layers"))
    if model.plan is not None:
        figures.append(wording.precision(model.plan.scheme))
    if model.waiting:
        about = "" if model.wait_s is None else f", about {model.wait_s:.0f} s"
        figures.append(f"{wording.plural(model.waiting, 'prompt waits', 'prompts wait')}{about}")
    return ModelCard(
        name=wording.model_name(model.name),
        pill=text,
        tone=tone,
        figures=" · ".join(figures),
        segments=segments,
        progress=model.progress if model.state in ON_ITS_WAY else None,
        line=wording.model_progress(model, state.transfers),
        explanation=_why(model),
    )


def _speeds(model: ModelState) -> list[str]:
    """How fast this plan was in its last answer, and how fast it is predicted to be."""
    if model.plan is None or model.state != "ready":
        return []
    predicted = f"{wording.tokens_per_s(model.plan.predicted_tokens_per_s)} predicted"
    if model.tokens_per_s is None:
        return [predicted]
    return [f"{wording.tokens_per_s(model.tokens_per_s)} measured", predicted]


def _why(model: ModelState) -> str:
    """Why the model runs as it does. There is always an answer."""
    if model.plan is None:
        return (
            "Potluck measures how fast the computers and the links between them are, and gives each"
            " one the layers with which an answer comes soonest."
        )
    stages = [
        f"{s.node}: {wording.plural(s.layers[1] - s.layers[0], 'layer', 'layers')}"
        f" · {wording.size(s.memory)} · {s.predicted_ms:.1f} ms per token"
        for s in model.plan.stages
    ]
    said = model.plan.explanation.splitlines()
    return "\n".join(said if len(said) > 1 else [*said, *stages])


def _segments(state: ClusterState) -> tuple[Segment, ...]:
    plan = state.model.plan
    if plan is None:
        return ()
    colors = {computer.node_id: computer.color for computer in state.computers}
    return tuple(
        Segment(
            name=stage.group or stage.node,
            start=stage.layers[0],
            stop=stage.layers[1],
            color=colors.get(stage.node_id, index),
            tip=f"{stage.group or stage.node} · {stage.device} · {stage.predicted_ms:.1f} ms per token",
        )
        for index, stage in enumerate(plan.stages)
        if stage.layers[1] > stage.layers[0] and not _is_behind(plan.stages, index)
    )


def _is_behind(stages: Sequence[StageView], index: int) -> bool:
    """Whether a stage computes the layers of the one before it together with it."""
    return index > 0 and bool(group := stages[index].group) and stages[index - 1].group == group


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
            what = "Receiving layers" if me.state == "receiving" else "Loading layers"
            share = f" · {wording.percent(me.progress)}" if me.progress is not None else ""
            return LendView("heart", "accent", f"Helping {names}", what + share)
        layers = f"{me.layers[1] - me.layers[0]} layers" if me and me.layers else "Ready"
        return LendView("heart", "ok", f"Helping {names}", layers)
    address = next(iter(state.node.addresses), "")
    if state.node.member_of:
        names = wording.listing(state.node.member_of)
        text = "It connects by itself as soon as Potluck runs there."
        return LendView("cluster", "accent", f"Waiting for {names}", text, address)
    text = "Open Potluck on your main computer. It finds this one by itself."
    return LendView("cluster", "accent", "Ready to join", text, address)
