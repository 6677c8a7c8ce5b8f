"""What the Cluster page shows of the computers of a home. Pure."""

from typing import Final, Literal, NamedTuple, TypeAlias

from potluck.api.values.schema import ClusterState, Computer
from potluck_app import wording
from potluck_app.tokens import Tone

Choice: TypeAlias = Literal["rename", "pause", "resume", "limit", "test", "main", "remove"]
"""What the person can do with a computer."""


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
_PICTURES: Final = {
    "soon": "will read pictures for the others",
    "yes": "reads pictures for the others",
}
# States whose `detail` is a sentence for the person, shown in place of memory and link.
_EXPLAINED: Final = frozenset({"lost", "version_differs", "blocked", "paused"})


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
    medium: str  # what the link goes over
    holds: str  # which layers, and which spare copies
    detail: str  # a sentence in place of the figures
    receiving: str  # "1.2 of 3.4 GB · 420 Mbit/s · 20 s left", while it receives
    progress: float | None
    removable: bool
    is_self: bool
    paused: bool  # by its owner if it is this computer, else by this home
    online: bool


def pill(computer: Computer) -> tuple[str, Tone]:
    """Return the state of a computer in one or two words, and their tone."""
    text, tone = _PILLS[computer.state]
    if computer.reconnecting:
        return "Reconnecting", "warn"
    if computer.state == "ready" and computer.lacked_memory:
        return "Out of memory", "err"
    if computer.state in ("ready", "running") and computer.slower is not None:
        return "Slow", "warn"
    if computer.state == "receiving" and computer.reads_pictures != "no":
        text = "Receiving"
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
        link=_link(computer),
        medium=wording.medium_line(computer.medium),
        holds=_holds(computer),
        detail=(computer.detail or "") if computer.state in _EXPLAINED else "",
        receiving=receiving,
        progress=computer.progress if computer.state in ("receiving", "loading") else None,
        removable=computer.paired and not computer.is_self,
        is_self=computer.is_self,
        paused=state.node.paused if computer.is_self else computer.set_aside,
        online=computer.online,
    )


def _link(computer: Computer) -> str:
    """Return what its sensors say, and its link."""
    parts = (wording.vitals(computer), wording.link_line(computer))
    return " · ".join(filter(None, parts))


def _holds(computer: Computer) -> str:
    parts: list[str] = []
    if computer.state == "ready" and computer.lacked_memory:
        return (
            "Its memory did not suffice for the layers that it was to load. Close programs there, or"
            " choose a smaller model or context."
        )
    ranges = computer.ranges or (() if computer.layers is None else (computer.layers,))
    if numbers := [wording.layer_range(*each) for each in ranges if each[1] > each[0]]:
        parts.append(f"Layers {', '.join(numbers)}")
    if computer.reads_pictures != "no":
        parts.append(_PICTURES[computer.reads_pictures])
    if (spare := computer.spare) is not None:
        layers = wording.plural(spare.layers, "layer", "layers")
        so_far = "" if spare.stored >= spare.nbytes else f"{wording.size(spare.stored)} of "
        parts.append(f"spare copies of {layers} on its disk, {so_far}{wording.size(spare.nbytes)}")
    if computer.slower is not None:
        times = f"{computer.slower:.1f}".removesuffix(".0")
        parts.append(f"takes {times} times as long as measured")
    line = " · ".join(parts)
    return line[:1].upper() + line[1:]


def _icon(name: str) -> Literal["desktop", "laptop"]:
    folded = name.casefold()
    return "laptop" if any(word in folded for word in _LAPTOP_WORDS) else "desktop"
