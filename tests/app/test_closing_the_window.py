"""What goes on when the window is closed, and what the tray says of it."""

import msgspec
import pytest
from fake_backend import PLAN, Server, computer
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from scripted_window import running_model
from started import Make, connect, going_on

from potluck.api.values.hub import Download
from potluck.api.values.schema import Listener, ModelState
from potluck.api.values.update import Update
from potluck_app.application import Application
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    # The offscreen platform has no tray of its own and no order of windows.
    pytest.mark.qt_log_ignore("systemTrayWindowChanged", r"does not support raise\(\)"),
]


def test_closing_the_chat_leaves_the_model_to_who_else_uses_it(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make()
    application.preferences.change(mode="master")
    application.start()
    server.update(model=ModelState(name="big", state="ready", plan=PLAN))
    connect(application, qtbot)

    assert application.main is not None
    with qtbot.waitSignals([application.ending, application.ended], order="strict"):
        application.main.close()

    assert server.backend.released.wait(10)  # the node unloads what nobody holds and uses
    assert server.backend.state().model.name == "big"
    assert not server.backend.stopped.is_set()


def test_what_goes_on_without_the_window_is_said_in_the_tray(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = going_on(make, server, qtbot, tray=True)
    assert application.main is not None
    assert application.tray is not None
    assert not application.main.isVisible()
    assert application.tray.status.text() == "Other programs can use the model on port 8000."
    assert not application.tray.pauses.menuAction().isVisible()
    assert not application.tray.free.isVisible()

    application.tray.open.trigger()
    assert application.main.isVisible()
    assert application.tray is None

    application.main.close()
    with qtbot.waitSignal(application.ended):
        application.tray.quit.trigger()
    assert server.backend.stopped.is_set()


def closed(make: Make, qtbot: QtBot, choice: str, *, tray: bool) -> Application:
    """Return a program whose window is closed while nothing goes on; `choice` was made for that."""
    application = make(tray=tray)
    application.preferences.change(mode="master", closing=choice)
    application.start()
    qtbot.waitUntil(lambda: application.backend.live_state is not None)
    assert application.main is not None
    application.main.close()
    return application


def test_a_window_that_is_to_stay_in_the_tray_does_so_and_holds_the_node(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = closed(make, qtbot, "tray", tray=True)
    assert application.main is not None
    assert application.tray is not None
    assert not application.main.isVisible()
    assert application.tray.status.text() == "Potluck is ready."
    shown = qtbot.waitSignal(application.backend.state_changed)
    with qtbot.assertNotEmitted(application.ended), shown:  # a state in which nothing goes on
        server.update(hint="Nobody is there.")
    assert not server.backend.released.is_set()

    application.tray.open.trigger()
    assert application.main.isVisible()
    application.main.close()
    assert application.tray is not None
    with qtbot.waitSignal(application.ended):
        application.tray.quit.trigger()
    assert server.backend.stopped.is_set()


def test_where_there_is_no_tray_to_stay_in_the_window_ends(make: Make, qtbot: QtBot) -> None:
    application = make(tray=False)
    application.preferences.change(mode="master", closing="tray")
    application.start()
    assert application.main is not None
    with qtbot.waitSignal(application.ended):
        application.main.close()


def test_a_window_that_is_to_quit_ends_all_that_goes_on_without_a_question(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.preferences.change(mode="master", closing="quit")
    application.start()
    server.update(listeners=(Listener(host="127.0.0.1", port=8000),))
    backend = application.backend
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.listeners))
    assert application.main is not None
    with qtbot.waitSignal(application.ended):
        application.main.close()

    assert application.tray is None
    assert server.backend.stopped.is_set()


def test_a_hidden_window_ends_when_nothing_goes_on_any_more(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = going_on(make, server, qtbot, tray=True)

    with qtbot.waitSignal(application.ended):
        server.update(listeners=())

    assert server.backend.released.wait(10)
    assert not server.backend.stopped.is_set()


def test_a_download_goes_on_without_the_model(make: Make, server: Server, qtbot: QtBot) -> None:
    application = make(tray=True)
    application.preferences.change(mode="master")
    application.start()
    connect(application, qtbot)
    download = Download(
        id="d1", model="Qwen/Qwen3-8B", variant="Q4", state="running", done=1, total=2
    )
    server.update(downloads=(download,))
    backend = application.backend
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.downloads))

    assert application.main is not None
    application.main.close()

    assert application.tray is not None
    assert application.tray.status.text() == "Qwen3-8B is still being downloaded."
    assert server.backend.released.wait(10)
    with qtbot.waitSignal(application.ended):
        server.update(downloads=())  # the tray still hears of it


def test_a_download_that_is_done_is_said_in_the_tray_before_it_goes(
    make: Make, server: Server, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = make(tray=True)
    application.preferences.change(mode="master")
    application._place._reading.setInterval(100)
    application.start()
    connect(application, qtbot)
    running = Download(
        id="d1", model="Qwen/Qwen3-8B", variant="Q4", state="running", done=1, total=2
    )
    server.update(downloads=(running,))
    backend = application.backend
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.downloads))
    assert application.main is not None
    application.main.close()
    assert application.tray is not None
    said: list[str] = []
    monkeypatch.setattr(application.tray, "say", lambda _title, text: said.append(text))

    with qtbot.waitSignal(application.ended):
        server.update(downloads=(msgspec.structs.replace(running, state="done", done=2),))

    assert said == ["Qwen3-8B is downloaded and ready to use."]


def test_a_computer_that_is_lost_during_a_reply_is_said_in_the_tray(
    make: Make, server: Server, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = going_on(make, server, qtbot, tray=True)
    assert application.tray is not None
    said: list[str] = []
    monkeypatch.setattr(application.tray, "say", lambda _title, text: said.append(text))
    mac = computer("Mac", "2", layers=(0, 4))
    lost = msgspec.structs.replace(mac, state="lost")
    idle, answering = running_model(), running_model(answering=1)

    def shown() -> object:
        state = application.backend.state
        return state and (state.model, state.computers)

    for model, each in ((idle, mac), (idle, lost), (answering, mac), (answering, lost)):
        server.update(model=model, computers=(each,))
        qtbot.waitUntil(lambda known=(model, (each,)): shown() == known)

    assert [text.partition(".")[0] for text in said] == [
        "Mac stopped answering in the middle of a reply"
    ]


OFFERED = Update(phase="offered", message="There is one.", version="9.0.0")


@pytest.mark.parametrize(
    ("role", "where"),
    [
        ("chats", "You find it in the settings, under Updates."),
        ("lends", "Open its window to have it installed."),
    ],
)
def test_a_newer_version_is_said_once_in_the_tray(
    make: Make, server: Server, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, role: str, where: str
) -> None:
    if role == "chats":
        application = going_on(make, server, qtbot, tray=True)
    else:
        application = make(tray=True)
        application.start(worker=True, hidden=True)
        qtbot.waitUntil(lambda: application.tray is not None)
        connect(application, qtbot)
    assert application.tray is not None
    said: list[str] = []
    monkeypatch.setattr(application.tray, "say", lambda _title, text: said.append(text))

    for update in (OFFERED, msgspec.structs.replace(OFFERED, phase="looking"), OFFERED):
        server.update(update=update)
        qtbot.waitUntil(lambda u=update: getattr(application.backend.state, "update", None) == u)

    assert said == [f"Potluck 9.0.0 is there. {where}"]
    assert make().preferences.current.told_update == "9.0.0"  # nor is it said after another start


def test_without_a_tray_the_window_asks_before_it_ends_what_goes_on(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = going_on(make, server, qtbot, tray=False)
    assert application.main is not None
    assert application.main.isVisible()
    question = application.main.findChild(Confirmation)
    assert question is not None

    with qtbot.waitSignal(application.ended):
        qtbot.mouseClick(question.yes, Qt.MouseButton.LeftButton)

    assert server.backend.stopped.is_set()


def test_the_window_ends_without_a_node_too(make: Make, qtbot: QtBot) -> None:
    application = make(node=False)
    application.preferences.change(mode="master")
    application.start()

    assert application.main is not None
    with qtbot.waitSignal(application.ended):
        application.main.close()
