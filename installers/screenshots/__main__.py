"""Draw every window with an invented home, light and dark.

Usage: `python installers/screenshots.py FOLDER`. The pictures of the README come from here. Needs
no display and no node; nothing is measured.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "core"), str(root / "app")]

import msgspec
from PySide6.QtCore import QCoreApplication, QEvent  # noqa: TID253 - it draws windows
from PySide6.QtWidgets import QApplication, QWidget  # noqa: TID253

from potluck.api.hub import Download, Fit, HubAnswer, HubModel, Speed, Variant
from potluck.api.schema import (
    ClusterState,
    Computer,
    Device,
    Invite,
    ModelEntry,
    ModelState,
    Node,
    Pairing,
    PlanView,
    SpareCopy,
    StageView,
    Transfer,
)
from potluck_app.backend import Backend
from potluck_app.chats.history import History
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Draft,
    Hit,
    Message,
    Settings,
    Stats,
    new_id,
)
from potluck_app.http import Call, Endpoint, Http, Method, Problem
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Choice, Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow
from potluck_app.views.worker import WorkerWindow

GB = 10**9
ME, MAC, OLD, GAMING, STUDY = ("1a" * 32, "2b" * 32, "3c" * 32, "4d" * 32, "5e" * 32)

REPLY = '''Use a **slice in a generator** — it works for any sequence:

```python
def chunks(seq, n):
    """Yield slices of length n."""
    for i in range(0, len(seq), n):
        yield seq[i:i + n]   # the last one may be shorter

print(list(chunks(list(range(7)), 3)))
```

- `list(chunks(x, 3))` gives a list of lists
- for iterators use `itertools.batched` (Python 3.12+)
'''


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
    explanation="No computer can hold this model alone. Together they answer about 8 tokens a second.",
)


def _computer(node_id: str, name: str, color: int, device: Device, **more: object) -> Computer:
    known: dict[str, object] = {"paired": True, "online": True, "state": "ready", **more}
    return Computer(node_id=node_id, name=name, color=color, devices=(device,), **known)  # pyright: ignore[reportArgumentType]


def home(*, streaming: bool = False, code: str | None = "427918") -> ClusterState:
    """Return a home of four computers, and one more that wants to join."""
    old: dict[str, object] = {"bytes_per_s": 11.2e6, "rtt_ms": 6.0, "layers": (52, 64)}
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
            detail="game running",
            bytes_per_s=117e6,
            rtt_ms=0.3,
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
            addresses=("192.168.1.20:40231",),
            role="master",
            home_id=ME,
        ),
        computers=computers,
        model=model,
        transfers=(transfer,) if streaming else (),
        pairings=(pairing,),
    )


def _with_context(state: ClusterState, context: int) -> ClusterState:
    model = msgspec.structs.replace(state.model, context=context)
    return msgspec.structs.replace(state, model=model)


def alone() -> ClusterState:
    """Return the state of a first start: no other computer is there yet."""
    full = home()
    return ClusterState(node=full.node, computers=full.computers[:1])


def lent(*, asked: bool = False) -> ClusterState:
    """Return the state of a computer that helps another one, or is asked to."""
    me = _computer(
        OLD,
        "Old laptop",
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
            node_id=OLD,
            name="Old laptop",
            version="0.1.0",
            addresses=("192.168.1.23:40231",),
            role="worker",
            lent_to=() if asked else ("Living-room PC",),
        ),
        computers=(me,),
        pairings=(pairing,) if asked else (),
    )


def _device(kind: str, name: str, total: float, free: float) -> Device:
    return Device(kind=kind, name=name, memory_total=int(total * GB), memory_free=int(free * GB))


def _fit(text: str, speed: tuple[float, float] | None, *, alone: bool, missing: int = 0) -> Fit:
    known = None if speed is None else Speed(low=speed[0], high=speed[1])
    return Fit(fits=not missing, text=text, speed=known, alone=alone, missing=missing)


QUICK = _fit("About 41 to 72 tokens/s on this computer.", (41, 72), alone=True)
GOOD = _fit("About 11 tokens/s on this computer. About 19 with Attic PC.", (11, 11), alone=True)
TOGETHER = _fit(
    "About 8 to 14 tokens/s on Living-room PC, MacBook Air and Old laptop. It does not fit on this"
    " computer alone.",
    (8, 14),
    alone=False,
)
LARGE = _fit(
    "Would fit with 8.0 GB more memory: close other programs on Gaming PC, or add a computer.",
    None,
    alone=False,
    missing=8 * GB,
)
QWEN3 = "Qwen/Qwen3-{}-GGUF"
MODELS_HERE = (
    ModelEntry(name="guide", path="/guide", nbytes=7_400_000, source="potluck", fit=QUICK),
    ModelEntry(
        name="Qwen/Qwen3-32B-GGUF/Qwen3-32B-Q4_K_M",
        path="/hub/Qwen3-32B",
        nbytes=19_800_000_000,
        current=True,
        format="gguf",
        source="hub",
        parameters=32_800_000_000,
        held={"MacBook Air": 5_600_000_000, "Old laptop": 3_700_000_000},
        fit=TOGETHER,
    ),
    ModelEntry(
        name="Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M",
        path="/hub/Qwen3-8B",
        nbytes=5_030_000_000,
        format="gguf",
        source="hub",
        parameters=8_200_000_000,
        can_be_deleted=True,
        fit=GOOD,
    ),
    ModelEntry(
        name="llama3.2:1b",
        path="/ollama/llama",
        nbytes=1_320_000_000,
        format="gguf",
        source="ollama",
        parameters=1_240_000_000,
        fit=QUICK,
    ),
    ModelEntry(
        name="Llama-3.3-70B-Instruct",
        path="~/models/llama-70b",
        nbytes=141_000_000_000,
        parameters=70_600_000_000,
        fit=LARGE,
    ),
)


def _hub_model(
    name: str, billions: float, gigabytes: float, license_name: str, about: str, fit: Fit
) -> HubModel:
    variants = (
        Variant(name="Q8_0", format="gguf", nbytes=int(1.8 * gigabytes * GB), fit=TOGETHER),
        Variant(name="Q4_K_M", format="gguf", nbytes=int(gigabytes * GB), fit=fit),
    )
    return HubModel(
        name=name,
        page=f"https://huggingface.co/{name}",
        about=about,
        parameters=int(billions * GB),
        license=license_name,
        variants=variants,
        best="Q4_K_M",
        fit=fit,
    )


RECOMMENDED = (
    _hub_model(
        QWEN3.format("4B"),
        4.0,
        2.5,
        "apache-2.0",
        "The best small one: it reasons well and knows many languages.",
        QUICK,
    ),
    _hub_model(
        QWEN3.format("8B"),
        8.2,
        5.03,
        "apache-2.0",
        "A good choice for one computer with 16 GB: reasons well, many languages.",
        GOOD,
    ),
    _hub_model(
        "bartowski/google_gemma-3-12b-it-GGUF",
        11.8,
        7.3,
        "gemma",
        "Writes well, in very many languages.",
        TOGETHER,
    ),
    _hub_model(
        QWEN3.format("14B"),
        14.8,
        9.0,
        "apache-2.0",
        "For harder questions, on one large or two usual computers.",
        TOGETHER,
    ),
    _hub_model(
        "bartowski/Llama-3.3-70B-Instruct-GGUF",
        70.6,
        42.5,
        "llama3.3",
        "One of the best that a home can run, on several computers together.",
        LARGE,
    ),
)
OFFLINE = "The Hugging Face Hub cannot be reached: this computer has no internet just now."
DOWNLOADS = (
    Download(
        id="d1",
        model=QWEN3.format("14B"),
        variant="Q4_K_M",
        state="running",
        done=3_200_000_000,
        total=9_000_000_000,
        bytes_per_s=24_000_000,
        eta_s=242,
    ),
    Download(
        id="d2",
        model="bartowski/phi-4-GGUF",
        variant="Q4_K_M",
        state="paused",
        done=1_100_000_000,
        total=9_050_000_000,
    ),
)


def no_node() -> Endpoint:
    """Raise an error, since pictures need no node."""
    raise OSError("there is no node here")


class ScriptedBackend(Backend):
    """A backend that shows the states it is given and sends nothing."""

    def start(self) -> None:
        """Do nothing: there is no node to find."""

    def say(self, state: ClusterState) -> None:
        self.state = state
        self.connection = "connected"
        self.state_changed.emit(state)

    def _call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        """Return a call that nobody answers."""
        return Call(self)

    def _submit(self, send: Callable[[Http], None]) -> None:
        """Do nothing: there is no node to send to."""


def conversations(history: History) -> list[Conversation]:
    """Write chats of several days; the newest has a complete reply."""
    now = time.time()
    stats = Stats(tokens=118, tokens_per_s=7.9, time_to_first_token_s=1.2, prompt_tokens=3010)
    newest = Conversation(
        id=new_id(),
        title="Split a list in Python",
        updated=now,
        leaf="r2",
        messages=(
            Message(id="q", role="user", text="How do I split a list into chunks of n in Python?"),
            Message(id="r1", parent="q", role="assistant", text="Use a loop.", stats=stats),
            Message(id="r2", parent="q", role="assistant", text=REPLY, stats=stats),
        ),
    )
    others = [
        ("Recipe for four people", 0.02),
        ("Translate the letter", 0.03),
        ("Garden irrigation plan", 3),
        ("Holiday packing list", 5),
    ]
    result = [newest] + [
        Conversation(id=new_id(), title=title, updated=now - days * 86400) for title, days in others
    ]
    for conversation in result:
        history.save(conversation)
    return result


def settle(widget: QWidget) -> None:
    """Process events until every layout has its final size."""
    widget.ensurePolished()
    for _ in range(6):
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        QCoreApplication.processEvents()


class Studio:
    """Takes the pictures of one theme."""

    def __init__(self, qapp: QApplication, folder: Path, work: Path, choice: Choice) -> None:
        self._folder, self._choice = folder, choice
        self.theme = Theme(qapp, choice)
        self.backend = ScriptedBackend(no_node)
        history = History(work / "chats.sqlite")
        history.open()
        self.known = conversations(history)
        self.chat = Chat(self.backend, history)
        self.preferences = PreferencesFile(work / "window.json")

    def take(self, widget: QWidget, name: str) -> None:
        settle(widget)
        path = self._folder / f"{name}-{self._choice}.png"
        if not widget.grab().save(str(path)):
            raise OSError(f"{path} could not be written")

    def main_window(self) -> MainWindow:
        window = MainWindow(
            self.theme,
            self.backend,
            self.chat,
            self.preferences,
            on_share=lambda: None,
            on_close=lambda: True,
        )
        window.show()
        return window

    def take_all(self) -> None:
        self._first_run()
        self.preferences.change(mode="master")
        window = self.main_window()
        self._chat_pages(window)
        self._cluster_pages(window)
        self._other_pages(window)
        window.hide()
        self._worker()

    def _first_run(self) -> None:
        self.backend.say(alone())
        window = self.main_window()
        self.take(window, "first")
        window.hide()

    def _chat_pages(self, window: MainWindow) -> None:
        window.go(window.chat)
        self.take(window, "chat-empty")
        self.backend.say(home())
        self.chat.list.reset(self.known)
        self.chat._show(self.chat._opened(self.known[0]))
        self.take(window, "chat")
        self._chat_states(window)
        self.chat.new()
        self.backend.say(home(streaming=True))
        self.chat.send("Plan a week of dinners for four, nothing with nuts.")
        self.take(window, "chat-waiting")
        self.chat.stop()
        self.chat.new()

    def _chat_states(self, window: MainWindow) -> None:
        """Take the pictures of what can be done with a chat."""
        page = window.chat
        window.go(page)
        page.toggle_options()
        self.chat.set_settings(Settings(system="Answer briefly.", temperature=0.2, top_p=0.9))
        self.take(window, "chat-options")
        page.toggle_options()
        page.edit_last()
        files = (Attachment(name="chunks.py", text=REPLY), Attachment(name="notes.md", text="-"))
        page.composer.show_draft(Draft(text="Why does this fail?", attachments=files))
        page.sidebar.toast.offer("Deleted: Old recipes")
        self.take(window, "chat-edit")
        page.sidebar.toast.hide()
        found = [Hit(chat=self.known[1].id, title=self.known[1].title)]
        newest = self.known[0]
        excerpt = "…Use a slice in a generator, it works for any sequence"
        found.append(Hit(chat=newest.id, title=newest.title, message="r2", excerpt=excerpt))
        self.chat._searched = "slice"
        self.chat._on_found("slice", found)
        page.composer.show_draft(Draft())
        self.chat.messages.reset(self.chat._shown.tree if self.chat._shown else Tree())
        self.chat.revealed.emit(1, "slice")
        self.take(window, "chat-search")
        self.chat._on_found("slice", [])
        self.take(window, "chat-search-empty")
        page.sidebar.nothing.hide()
        self.chat._on_found("slice", None)
        self.backend.say(_with_context(home(), 3200))
        self.take(window, "chat-full")
        self.backend.say(home())

    def _cluster_pages(self, window: MainWindow) -> None:
        window.go(window.cluster)
        self.backend.say(home())
        self.take(window, "cluster")
        self.backend.say(home(streaming=True))
        self.take(window, "cluster-streaming")
        self.backend.say(alone())
        self.take(window, "cluster-alone")
        dialog = window.cluster.open_add_dialog()
        self.take(dialog, "add-computer")
        dialog._on_not_found(Problem("Nothing answers at 192.168.1.20. Is Potluck open there?"))
        dialog._on_invite(Invite(token="POT-" + "7KQ2M9XD" * 6, expires_s=600))
        self.take(dialog, "add-computer-token")
        dialog.close()
        self.backend.say(home())

    def _other_pages(self, window: MainWindow) -> None:
        self._models_pages(window)
        window.go(window.settings)
        self.take(window, "settings")
        self.backend.connection = "restarting"
        self.backend.connection_changed.emit("restarting", "")
        window.go(window.cluster)
        self.take(window, "banner")
        self.backend.say(home())

    def _models_pages(self, window: MainWindow) -> None:
        page, library = window.models, window.library
        window.go(page)
        library._on_models(MODELS_HERE)
        library._on_recommended(HubAnswer(models=RECOMMENDED))
        self.take(window, "models")
        page.open_tab(page.tab_hub)
        self.take(window, "models-discover")
        self.backend.say(msgspec.structs.replace(home(), downloads=DOWNLOADS))
        library._on_details(RECOMMENDED[2])
        terms = "The owner of the model asks its users to accept terms."
        name = RECOMMENDED[2].name
        library._on_refused(name, None, Problem(terms, code="gated"))
        self.take(window, "models-download")
        library.search("qwen3")
        library._on_found("qwen3", HubAnswer(offline=True, message=OFFLINE))
        self.backend.say(home())
        self.take(window, "models-offline")
        library.search("")
        window.go(window.chat)
        self.take(window.chat.model.menu(), "models-picker")

    def _worker(self) -> None:
        asked = lent(asked=True)
        free = msgspec.structs.replace(asked, pairings=())
        for name, state in (("worker", lent()), ("worker-asked", asked), ("worker-free", free)):
            self.backend.say(state)
            window = WorkerWindow(
                self.theme,
                self.backend,
                on_close=lambda: True,
                on_stop=lambda: None,
                on_chat=lambda: None,
            )
            window.show()
            self.take(window, name)
            window.hide()
            window.deleteLater()


def main() -> None:
    """Take all pictures."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    qapp = QApplication(sys.argv[:1])
    for choice in ("light", "dark"):
        with tempfile.TemporaryDirectory() as work:
            studio = Studio(qapp, folder, Path(work), choice)
            studio.take_all()
            studio.chat.close()
            studio.backend.close()
    print(f"The pictures are in {folder}.")


if __name__ == "__main__":
    main()
