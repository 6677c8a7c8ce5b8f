"""The worker window."""

import time
from datetime import datetime
from typing import Any

import msgspec
import pytest
from fake_backend import computer
from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QPushButton, QScrollArea, QSlider
from pytestqt.qtbot import QtBot
from scripted_window import ME, ScriptedBackend, pairing

from potluck import __version__
from potluck.api.values.engine import Engine
from potluck.api.values.politeness import Rules
from potluck.api.values.schema import ClusterState, Device, Node, Notice, RoleRequest
from potluck.api.values.update import Update, UpdateRequest
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.home.doctor import DoctorDialog
from potluck_app.views.options.update import UpdateDialog
from potluck_app.views.worker import HEIGHT, WIDTH, WorkerWindow

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def worker(qtbot: QtBot, theme: Theme, backend: ScriptedBackend) -> WorkerWindow:
    window = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    qtbot.addWidget(window)
    window.show()
    return window


def lent(*, me: dict[str, Any] | None = None, pairings: Any = (), **node: Any) -> ClusterState:
    own = computer("Laptop", "1", is_self=True, paired=False, **(me or {}))
    return ClusterState(
        node=Node(node_id=ME, name="Laptop", version="0", role="worker", **node),
        computers=(own,),
        pairings=pairings,
    )


def test_it_waits_helps_and_pauses_in_words(worker: WorkerWindow, backend: ScriptedBackend) -> None:
    assert worker.title.text() == "Starting…"
    titles: list[str] = []
    for state in (
        lent(),
        lent(lent_to=("Den",), me={"state": "receiving", "progress": 0.25}),
        lent(lent_to=("Den",), lent_model="big", lent_of=36, me={"layers": (0, 12)}),
        lent(paused=True),
        lent(paused=True, paused_until=datetime(2030, 1, 2, 18, 30).astimezone().timestamp()),
    ):
        backend.say(state)
        titles.append(f"{worker.title.text()}: {worker.text.text()}")

    assert titles == [
        "Ready to join: Open Potluck on your main computer. It finds this one by itself.",
        "Helping Den: Receiving layers · 25 %",
        "Helping Den: For each word of an answer, it computes 12 of the 36 layers of big.",
        "Paused: This computer lends nothing until you resume.",
        "Paused until 2030-01-02, 18:30: This computer lends nothing until then, or until you resume.",
    ]


def test_the_address_to_type_stands_there_until_somebody_uses_it(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend.say(lent(addresses=("10.0.0.1:4711", "[fe80::1]:4711")))
    assert worker.address.isVisible()
    assert worker.address.text() == "10.0.0.1:4711"

    backend.say(lent(addresses=("10.0.0.1:4711",), lent_to=("Den",)))

    assert not worker.address.isVisible()


def test_as_long_as_nobody_comes_the_doctor_is_offered(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(lent())
    qtbot.mouseClick(worker.doctor, LEFT)

    (doctor,) = worker.findChildren(DoctorDialog)
    assert doctor.isVisible()
    assert not doctor.address.isVisible()  # a helper is found, and looks for nobody

    for state in (
        lent(lent_to=("Den",)),
        lent(paused=True),
        lent(pairings=(pairing("confirm", role="worker"),)),
    ):
        backend.say(state)
        assert not worker.doctor.isVisible()


def test_a_member_waits_for_its_main_computer(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend.say(lent(member_of=("Desk",)))

    assert worker.title.text() == "Waiting for Desk"


def test_a_request_shows_its_digits_and_takes_an_answer(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    asks = pairing("confirm", role="worker", name="Living-room PC")
    backend.say(lent(pairings=(asks,)))
    assert worker.request.isVisible()
    assert worker.request.code.text() == "427 918"
    assert worker.request._title.text() == "Living-room PC wants to use this computer"

    qtbot.mouseClick(worker.request.allow, LEFT)
    assert backend.last("/cluster/pairings/p1").body.accept is True
    backend.say(lent(pairings=(msgspec.structs.replace(asks, state="accepted"),)))
    assert not worker.request.allow.isEnabled()
    qtbot.mouseClick(worker.request.refuse, LEFT)
    assert backend.last("/cluster/pairings/p1").body.accept is False

    backend.say(lent(pairings=(msgspec.structs.replace(asks, state="refused"),)))
    assert not worker.request.isVisible()


def test_a_limit_is_of_the_ram_which_a_graphics_card_does_not_add_to(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    gpu = Device(kind="cuda", name="RTX", memory_total=8 * 10**9, memory_free=7 * 10**9)
    half = Device(kind="cpu", name="Ryzen", memory_total=16 * 10**9, memory_free=9 * 10**9)
    other = msgspec.structs.replace(half, index=1)

    backend.say(lent(me={"devices": (gpu, half, other)}))
    assert worker._memory_line.text() == "Lends all that is free of 32 GB"
    backend.say(lent(me={"devices": (gpu,)}))
    assert worker._memory_line.text() == "Lends all that is free of 8 GB"


# The offscreen platform has no order of windows, and no menu that takes the keyboard.
@pytest.mark.qt_log_ignore(r"does not support raise\(\)", "grabbing the keyboard")
def test_pause_and_resume(worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot) -> None:
    backend.say(lent())
    qtbot.mouseClick(worker.pause, LEFT)
    assert [action.text() for action in worker.pauses.actions()] == [
        "For an hour",
        "Until tomorrow",
        "Until I resume",
    ]
    worker.pauses.actions()[2].trigger()
    worker.pauses.close()
    assert backend.last("/cluster/role").body == RoleRequest(paused=True)

    backend.say(lent(paused=True))
    assert worker.pause.text() == "Resume"
    qtbot.mouseClick(worker.pause, LEFT)

    assert backend.last("/cluster/role").body == RoleRequest(paused=False)


def test_a_pause_of_an_hour_says_when_it_ends(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend.say(lent())
    before = time.time()

    worker.pauses.actions()[0].trigger()

    until = backend.last("/cluster/role").body.paused_until
    assert before + 3600 <= until <= time.time() + 3600


def test_the_owner_chooses_when_it_pauses_by_itself(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend.say(lent(rules=Rules(battery=False)))
    rules = {action.data(): action for action in worker.rules.actions()}
    on = [rule for rule, action in rules.items() if action.isChecked()]
    assert on == ["games", "memory", "heat"]

    rules["games"].trigger()

    asked = backend.last("/cluster/role").body
    assert asked == RoleRequest(rules=Rules(battery=False, games=False))


def test_it_says_why_it_pauses_by_itself(worker: WorkerWindow, backend: ScriptedBackend) -> None:
    backend.say(lent(withheld="games", lent_to=("Den",)))

    assert worker.title.text() == "Paused by itself"
    assert worker.text.text() == (
        "This computer is being used for a game or a film. It helps again a minute after that."
    )


def test_the_memory_is_given_back_on_request(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(lent(lent_to=("Den",)))

    qtbot.mouseClick(worker.free, LEFT)

    assert backend.last("/cluster/role").body == RoleRequest(free_now=True)


def test_the_memory_that_is_lent_can_be_limited(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(lent())
    assert worker._memory_line.text() == "Lends all that is free of 16 GB"

    for _ in range(10):
        qtbot.keyClick(worker.memory, Qt.Key.Key_Left)

    assert backend.last("/cluster/role").body == RoleRequest(worker=True, memory=8 * 10**9)
    assert worker._memory_line.text() == "Lends at most 8 of 16 GB"
    worker.memory.triggerAction(QSlider.SliderAction.SliderToMaximum)
    assert backend.last("/cluster/role").body == RoleRequest(worker=True, memory=0)


def test_the_limit_that_the_node_has_is_shown(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend.say(lent(memory_limit=4 * 10**9))

    assert worker._memory_line.text() == "Lends at most 4 of 16 GB"
    assert backend.paths() == []


def test_the_line_says_the_very_limit_and_a_choice_holds_until_the_node_has_it(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(lent(memory_limit=5 * 10**9))  # between two steps of the slider
    assert worker._memory_line.text() == "Lends at most 5 of 16 GB"

    worker.memory.setValue(11)
    qtbot.keyClick(worker.memory, Qt.Key.Key_Left)
    backend.say(lent(memory_limit=5 * 10**9))  # said before the node heard of it
    assert worker.memory.value() == 10
    assert worker._memory_line.text() == "Lends at most 8 of 16 GB"
    backend.last("/cluster/role").call.failed.emit(Problem("No."))

    assert worker._memory_line.text() == "Lends at most 5 of 16 GB"


def test_a_lost_node_is_one_calm_line(worker: WorkerWindow, backend: ScriptedBackend) -> None:
    backend.say(lent())
    backend.lose()
    assert worker.banner.isVisible()
    assert worker.title.text() == "Starting…"
    assert not worker.pause.isEnabled()

    backend.say(lent())

    assert not worker.banner.isVisible()


def test_it_is_small(worker: WorkerWindow) -> None:
    assert (worker.width(), worker.height()) == (WIDTH, HEIGHT) == (380, 520)


def test_it_says_that_potluck_could_not_be_started(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    backend._set_connection("failed", "The disk is full.")

    assert worker.banner.text.text() == "The disk is full."
    assert worker.title.text() == "Potluck is not running"
    assert worker.text.text() == "It is tried again by itself."


def test_an_engine_to_install_leaves_all_that_can_be_done_in_view(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    engine = Engine(phase="missing", message="", nbytes=190_000_000)

    backend.say(msgspec.structs.replace(lent(), engine=engine))
    QCoreApplication.processEvents()

    bar = worker.findChildren(QScrollArea)[0].verticalScrollBar()
    assert bar.maximum() == 0
    stop = worker.findChild(QPushButton, "worker-stop")
    assert stop is not None
    assert worker.rect().contains(stop.mapTo(worker, stop.rect().bottomRight()))


def test_what_the_node_tells_the_owner_of_a_helper_is_shown_until_it_is_read(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    told = Notice(id=3, level="info", text="Den has removed this computer.")
    needed = Notice(id=2, level="warning", text="Den's model does not fit without this computer.")

    backend.say(msgspec.structs.replace(lent(), notices=(needed, told)))
    assert worker.banner.text.text() == needed.text

    worker.banner._dismiss()
    assert worker.banner.text.text() == told.text

    backend.problem.emit("It cannot be changed.")
    assert worker.banner.text.text() == "It cannot be changed."

    worker.banner._problem_over.timeout.emit()  # twenty seconds later
    assert worker.banner.text.text() == told.text

    worker.banner._dismiss()
    assert worker.banner.isHidden()
    backend.say(msgspec.structs.replace(lent(), notices=(needed, told)))
    assert worker.banner.isHidden()


def test_a_newer_version_is_installed_from_the_window_of_a_helper_too(
    worker: WorkerWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(lent())
    assert not worker.update_button.isVisible()  # this node knows of none

    offered = Update(phase="offered", message="There is one.", version="9.0.0")
    node = msgspec.structs.replace(lent().node, version=__version__)
    backend.say(msgspec.structs.replace(lent(), node=node, update=offered))
    qtbot.mouseClick(worker.update_button, LEFT)
    (dialog,) = worker.findChildren(UpdateDialog)
    qtbot.mouseClick(dialog.card.install, LEFT)

    assert backend.last("/cluster/update").body == UpdateRequest(action="install")
    updated = Update(phase="quiet", message="Newest.")
    node = msgspec.structs.replace(node, version="9.0.0")
    backend.say(msgspec.structs.replace(lent(), node=node, update=updated))
    assert "Potluck 9.0.0 runs now" in dialog.card.text.text()
    assert "chat" not in dialog.card.text.text()  # this window has none
    assert worker.update_button.text() == "Another version runs…"


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Update(phase="quiet", message="None.", before="0.0.1"), "Updates…"),
        (Update(phase="offered", message="You left it.", left=True, version="9"), "Updates…"),
        (Update(phase="offered", message="", version="9"), "A newer version is there…"),
        (Update(phase="looking", message=""), "Looking for a newer version…"),
        (Update(phase="fetching", message="", version="9"), "Potluck is updated…"),
        (Update(phase="offered", message="No room.", failed=True, version="9"), "The update did not work…"),
        (Update(phase="fetched", message="sudo apt install", version="9"), "A newer version is here…"),
    ],
)  # fmt: skip
def test_a_helper_always_has_a_way_to_the_updates_which_says_how_they_are(
    worker: WorkerWindow, backend: ScriptedBackend, update: Update, text: str
) -> None:
    state = lent(lent_to=("Den",))
    node = msgspec.structs.replace(state.node, version=__version__)
    backend.say(msgspec.structs.replace(state, node=node, update=update))

    assert worker.update_button.isVisible()
    assert worker.update_button.text() == text


def test_a_helper_that_is_not_found_is_first_told_why(
    worker: WorkerWindow, backend: ScriptedBackend
) -> None:
    node = msgspec.structs.replace(lent().node, version=__version__)
    quiet = Update(phase="quiet", message="None.")
    backend.say(msgspec.structs.replace(lent(), node=node, update=quiet))

    assert worker.doctor.isVisible()
    assert not worker.update_button.isVisible()  # there is no room for what says nothing
    backend.say(
        msgspec.structs.replace(
            lent(), node=node, update=msgspec.structs.replace(quiet, before="0.0.1")
        )
    )
    assert worker.update_button.isVisible()
