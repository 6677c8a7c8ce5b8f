"""The invented home of the pictures: its computers, its model, and what it says in each state."""

from msgspec.structs import replace
from screenshots.said import BLOCKED, OTHER_VERSION, TOGETHER, WITHOUT_MAC, WITHOUT_OLD

from potluck.api.values.engine import Engine
from potluck.api.values.gpus import Gpu
from potluck.api.values.network import Interface, Medium, Network
from potluck.api.values.pairing import Pairing, PairingState
from potluck.api.values.schema import (
    ClusterState,
    Computer,
    ComputerState,
    Device,
    ModelState,
    Node,
    Notice,
    PlanView,
    ServedModel,
    SpareCopy,
    StageView,
    Transfer,
)
from potluck.api.values.vitals import Vitals
from potluck.errors import NotEnoughMemoryError

GB = 10**9
ME, MAC, OLD, GAMING, STUDY = ("1a" * 32, "2b" * 32, "3c" * 32, "4d" * 32, "5e" * 32)


def _stage(name: str, node_id: str, start: int, stop: int) -> StageView:
    return StageView(
        node=name,
        node_id=node_id,
        device="cuda:0",
        layers=(start, stop),
        embedding=start == 0,
        head=stop == 64,
        predicted_ms=(stop - start) * 1.6,
        memory=(stop - start) * 290_000_000,
    )


PLAN = PlanView(
    model_id="ab" * 32,
    model="Qwen3 32B",
    scheme="int4",
    context=32768,
    epoch=3,
    stages=(
        _stage("Living-room PC", ME, 0, 34),
        _stage("MacBook Air", MAC, 34, 52),
        _stage("Old laptop", OLD, 52, 64),
    ),
    predicted_tokens_per_s=8.2,
    alone={"Living-room PC": None, "MacBook Air": None, "Old laptop": None},
    explanation="Living-room PC, MacBook Air and Old laptop work together: about 8.2 tokens/s for one user."
    " A token takes 102 ms of computing and 20 ms on the links.\n"
    "Living-room PC has layers 0 to 33: it is the fastest, and its memory holds no more.\n"
    "MacBook Air has layers 34 to 51: its memory holds no more.\n"
    "Old laptop has layers 52 to 63: the faster ones are full.\n"
    "MacBook Air and Old laptop are on Wi-Fi: with cables a token would take about 106 ms instead of 122 ms.",
)


def _computer(node_id: str, name: str, color: int, device: Device, **more: object) -> Computer:
    known: dict[str, object] = {"paired": True, "online": True, "state": "ready", **more}
    return Computer(node_id=node_id, name=name, color=color, devices=(device,), **known)  # pyright: ignore[reportArgumentType]


def home(*, streaming: bool = False, code: str | None = "427918") -> ClusterState:
    """Return a home of four computers, and one more that wants to join."""
    old: dict[str, object] = {
        "bytes_per_s": 11.2e6,
        "rtt_ms": 6.0,
        "medium": Medium(kind="wifi"),
        "layers": (52, 64),
        "state": "running",
    }
    old["memory_lent"] = 3 * GB
    if streaming:
        old |= {"state": "receiving", "progress": 0.62}
    computers = (
        _computer(
            ME,
            "Living-room PC",
            0,
            _device("cuda", "RTX 3060", 12, 11.2),
            is_self=True,
            paired=False,
            medium=Medium(kind="cable", mbit=1000),
            state="running",
            layers=(0, 34),
            memory_lent=int(9.8 * GB),
        ),
        _computer(
            MAC,
            "MacBook Air",
            1,
            _device("mps", "Apple M2", 16, 10),
            bytes_per_s=52e6,
            rtt_ms=3.0,
            medium=Medium(kind="wifi"),
            state="running",
            layers=(34, 52),
            memory_lent=int(5.2 * GB),
            spare=SpareCopy(
                model="Qwen3 32B", layers=12, nbytes=int(3.4 * GB), stored=int(3.4 * GB)
            ),
        ),
        _computer(OLD, "Old laptop", 2, _device("cpu", "Core i5-7200U", 8, 3.4), **old),
        _computer(
            GAMING,
            "Gaming PC",
            3,
            _device("cuda", "RTX 4070", 12, 11.6),
            state="paused",
            detail="It is being used for a game or a film.",
            bytes_per_s=117e6,
            rtt_ms=0.3,
            medium=Medium(kind="cable", mbit=1000),
        ),
        Computer(node_id=STUDY, name="Study PC", joinable=True, online=True, state="pairing"),
    )
    pairing = Pairing(
        id="p1", node_id=STUDY, name="Study PC", role="master", state="confirm", code=code
    )
    model = ModelState(
        name="Qwen3 32B",
        model_id=PLAN.model_id,
        state="streaming" if streaming else "ready",
        progress=0.62 if streaming else None,
        tokens_per_s=None if streaming else 7.9,
        plan=PLAN,
        context=32768,
    )
    transfer = Transfer(
        node_id=OLD,
        name="Old laptop",
        sent=2_100_000_000,
        total=3_400_000_000,
        bytes_per_s=11.2e6,
        eta_s=116,
    )
    return ClusterState(
        node=Node(
            node_id=ME,
            name="Living-room PC",
            version="0.1.0",
            addresses=("192.168.1.20:47777",),
            role="master",
            home_id=ME,
            idle_unload_s=1800.0,
            network=NETWORK,
        ),
        computers=computers,
        model=model,
        transfers=(transfer,) if streaming else (),
        pairings=(pairing,),
    )


GPUS = (
    Gpu(id="nvidia:GPU-1", name="NVIDIA GeForce RTX 4070", used=False),
    Gpu(id="nvidia:GPU-2", name="NVIDIA GeForce GTX 1660"),
)
NETWORK = Network(
    interfaces=(
        Interface(name="enp3s0", medium="cable", mbit=1000, addresses=("192.168.1.20",)),
        Interface(name="wlp2s0", medium="wifi", addresses=("192.168.1.23",)),
        Interface(name="wg0", medium="vpn", addresses=("10.8.0.2",)),
        Interface(name="docker0", medium="virtual", addresses=("172.17.0.1",)),
    ),
    port=47777,
)


def generating(state: ClusterState, *, waiting: int = 0) -> ClusterState:
    """Return the state while an answer is computed, and so many prompts wait."""
    wait_s = 40.0 if waiting else None
    model = replace(state.model, answering=1, waiting=waiting, wait_s=wait_s)
    return replace(state, model=model)


def blind(state: ClusterState) -> ClusterState:
    """Return the state with a model that reads only text."""
    served = ServedModel(name=state.model.name or "", created=0, is_loaded=True, sees=False)
    return replace(state, served=(served,))


def failed(state: ClusterState) -> ClusterState:
    """Return the state after a model could not be loaded."""
    text = NotEnoughMemoryError(28_700_000_000, 24_600_000_000).message
    model = ModelState(name="Qwen3 32B", state="failed", message=text)
    return replace(state, model=model, computers=_without_layers(state.computers))


def _without_layers(computers: tuple[Computer, ...]) -> tuple[Computer, ...]:
    return tuple(
        c if c.state != "running" else replace(c, state="ready", layers=None, memory_lent=0)
        for c in computers
    )


def idle(state: ClusterState) -> ClusterState:
    """Return the state before a model is loaded."""
    return replace(state, model=ModelState(), computers=_without_layers(state.computers))


def loading(state: ClusterState) -> ClusterState:
    """Return the state while the computers load what they have received."""
    model = replace(state.model, state="loading", progress=0.81, tokens_per_s=None)
    shares = {ME: 0.9, MAC: 0.74, OLD: 0.35}
    computers = tuple(
        replace(c, state="loading", progress=shares[c.node_id]) if c.node_id in shares else c
        for c in state.computers
    )
    return replace(state, model=model, computers=computers)


def set_aside(state: ClusterState) -> ClusterState:
    """Return the state when this home leaves the Gaming PC out."""
    computers = tuple(
        replace(c, set_aside=True, detail="This home leaves it out until you resume it.")
        if c.node_id == GAMING
        else c
        for c in state.computers
    )
    return replace(state, computers=computers)


def handed_over() -> ClusterState:
    """Return the state of a computer that was made the main one."""
    state = idle(home())
    mac = next(c for c in state.computers if c.node_id == MAC)
    text = (
        "MacBook Air has made this computer the main computer: MacBook Air and its helpers help it now."
        " To undo that, make MacBook Air the main computer."
    )
    helper = replace(mac, state="ready", spare=None)
    return replace(
        state,
        node=replace(state.node, handed_over="main"),
        computers=(state.computers[0], helper, *state.computers[2:4]),
        pairings=(),
        notices=(Notice(id=1, level="info", text=text),),
    )


def large() -> ClusterState:
    """Return a home of eight computers in all states, two of which compute their layers together."""
    full = home()
    group = "Desk + Attic"
    desk, attic, cellar, kitchen = ("6f" * 32, "7a" * 32, "8b" * 32, "9c" * 32)
    cards = tuple(replace(_device("cuda", "RTX 3090", 24, 22.4), index=i) for i in range(2))
    cable = Medium(kind="cable", mbit=2500)
    near: dict[str, object] = {
        "bytes_per_s": 290e6,
        "rtt_ms": 0.2,
        "medium": cable,
        "state": "running",
        "layers": (0, 40),
    }
    one = _device("cuda", "RTX 3090", 24, 21.9)
    more = (
        replace(_computer(desk, "Desk", 4, cards[0], memory_lent=18 * GB, **near), devices=cards),
        _computer(attic, "Attic", 5, one, memory_lent=17 * GB, **near),
        _absent(cellar, "Cellar server", 0, "blocked", BLOCKED),
        _absent(
            kitchen, "Kitchen mini PC with a rather long name", 1, "version_differs", OTHER_VERSION
        ),
    )
    half = 32 * 290_000_000
    stages = (
        replace(_stage("Desk", desk, 0, 40), group=group, share=0.5, memory=half),
        replace(_stage("Attic", attic, 0, 40), group=group, share=0.5, memory=half),
        replace(_stage("Living-room PC", ME, 40, 64), head=True),
    )
    plan = replace(PLAN, stages=stages, predicted_tokens_per_s=21.4, explanation=TOGETHER)
    me = replace(full.computers[0], layers=(40, 64), memory_lent=7 * GB, medium=cable)
    lost = next(c for c in without_old_laptop().computers if c.node_id == OLD)
    mac = replace(full.computers[1], state="ready", layers=None, memory_lent=0, spare=None)
    return replace(
        full,
        computers=(me, mac, lost, full.computers[3], *more),
        model=replace(full.model, plan=plan, tokens_per_s=20.8),
        pairings=(),
    )


def _absent(node_id: str, name: str, color: int, state: ComputerState, detail: str) -> Computer:
    device = _device("cpu", "Ryzen 5 5600G", 32, 24)
    return _computer(node_id, name, color, device, online=False, state=state, detail=detail)


def troubled() -> ClusterState:
    """Return the state of a home with a slow computer, one without enough memory, and one that comes back."""
    state = home()
    changed: dict[str, dict[str, object]] = {
        ME: {"layers": (0, 52), "vitals": Vitals(heat_c=65.0)},
        OLD: {"slower": 2.5, "vitals": Vitals(heat_c=95.0, battery=0.64)},
        MAC: {
            "state": "ready",
            "layers": None,
            "spare": None,
            "memory_lent": 0,
            "lacked_memory": True,
            "vitals": Vitals(battery=0.8, plugged=True),
        },
        GAMING: {
            "state": "lost",
            "online": False,
            "reconnecting": True,
            "detail": "It is found, and being connected.",
        },
    }
    stages = (_stage("Living-room PC", ME, 0, 52), PLAN.stages[2])
    plan = replace(PLAN, stages=stages, predicted_tokens_per_s=4.4, explanation=WITHOUT_MAC)
    model = replace(state.model, plan=plan, tokens_per_s=4.1)
    computers = tuple(replace(c, **changed.get(c.node_id, {})) for c in state.computers)
    return replace(state, computers=computers, model=model, pairings=())


def with_engine(state: ClusterState, engine: Engine) -> ClusterState:
    return replace(state, engine=engine)


def without_old_laptop() -> ClusterState:
    """Return the state after a computer stopped answering: the others have taken its layers."""
    state = home()
    lost = "It is off, asleep or on another network."
    now: dict[str, dict[str, object]] = {
        ME: {"layers": (0, 38), "memory_lent": int(11.0 * GB)},
        MAC: {"layers": (38, 64), "memory_lent": int(7.5 * GB), "spare": None},
    }
    computers = tuple(
        replace(c, state="lost", online=False, detail=lost, layers=None, memory_lent=0, devices=())
        if c.node_id == OLD
        else replace(c, **now.get(c.node_id, {}))
        for c in state.computers
    )
    stages = (_stage("Living-room PC", ME, 0, 38), _stage("MacBook Air", MAC, 38, 64))
    plan = replace(PLAN, stages=stages, predicted_tokens_per_s=7.6, explanation=WITHOUT_OLD)
    model = replace(state.model, plan=plan, tokens_per_s=7.4)
    return replace(state, computers=computers, model=model)


def pairing(state: ClusterState, step: PairingState) -> ClusterState:
    """Return the state when its pairing has come so far."""
    code = "427918" if step in ("confirm", "accepted") else None
    changed = tuple(replace(each, state=step, code=code) for each in state.pairings)
    return replace(state, pairings=changed)


def with_context(state: ClusterState, context: int) -> ClusterState:
    model = replace(state.model, context=context)
    return replace(state, model=model)


def alone() -> ClusterState:
    """Return the state of a first start: no other computer is there yet."""
    full = home()
    me = replace(full.computers[0], state="ready", layers=None, memory_lent=0)
    return ClusterState(node=full.node, computers=(me,))


def first_found() -> ClusterState:
    """Return the state of a first start, when another computer was found."""
    full, first = home(), alone()
    return replace(first, computers=(*first.computers, full.computers[-1]), pairings=full.pairings)


def lent(*, asked: bool = False) -> ClusterState:
    """Return the state of a computer that helps another one, or is asked to."""
    node_id, name = (STUDY, "Study PC") if asked else (OLD, "Old laptop")
    me = _computer(
        node_id,
        name,
        2,
        _device("cpu", "Core i5-7200U", 8, 3.4),
        is_self=True,
        state="ready" if asked else "running",
        layers=None if asked else (52, 64),
    )
    pairing = Pairing(
        id="p1", node_id=ME, name="Living-room PC", role="worker", state="confirm", code="427918"
    )
    return ClusterState(
        node=Node(
            node_id=node_id,
            name=name,
            version="0.1.0",
            addresses=("192.168.1.24:47777",),
            role="worker",
            lent_to=() if asked else ("Living-room PC",),
            lent_model="" if asked else "Qwen/Qwen3-32B",
            lent_of=0 if asked else 64,
        ),
        computers=(me,),
        pairings=(pairing,) if asked else (),
    )


def _device(kind: str, name: str, total: float, free: float) -> Device:
    return Device(kind=kind, name=name, memory_total=int(total * GB), memory_free=int(free * GB))


def with_notice(state: ClusterState) -> ClusterState:
    """Return the state with a line about a computer that is gone."""
    text = "Old laptop stopped answering. Potluck goes on without it."
    return replace(state, notices=(Notice(id=1, level="warning", text=text),))
