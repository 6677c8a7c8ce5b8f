"""How the program begins and ends: which window, which holder, what is given back."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import PLAN, TOKEN, Server
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from potluck.api.hub import Download
from potluck.api.schema import Listener, ModelState, Pairing, RoleRequest
from potluck.system.autostart import Autostart, FilePlace, desktop_entry, entry_command
from potluck_app.application import Application
from potluck_app.http import Endpoint
from potluck_app.views.dialogs import Confirmation

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    # The offscreen platform has no tray of its own and no order of windows.
    pytest.mark.qt_log_ignore("systemTrayWindowChanged", r"does not support raise\(\)"),
]

Make = Callable[..., Application]


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    """Where this computer keeps what it starts."""
    return FilePlace(tmp_path / "autostart" / "potluck.desktop", desktop_entry, entry_command)


@pytest.fixture
def make(qapp: QApplication, tmp_path: Path, server: Server, place: FilePlace) -> Iterator[Make]:
    made: list[Application] = []

    def build(*, tray: bool = False, node: bool = True) -> Application:
        def find() -> Endpoint:
            if not node:
                raise OSError("There is no node.")
            return Endpoint(port=server.port, token=TOKEN)

        application = Application(
            qapp,
            data_folder=tmp_path / "data",
            config_folder=tmp_path / "config",
            find_or_start=find,
            autostart=Autostart(place, [sys.executable, "-m", "potluck_app"]),
            is_tray_available=lambda: tray,
        )
        made.append(application)
        return application

    yield build
    for application in made:
        application.close()
        for window in (application.main, application.worker):
            if window is not None:
                window.deleteLater()
        application.deleteLater()


def connect(application: Application, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: application.backend.connection == "connected")


def click(window: QWidget | None, name: str, qtbot: QtBot) -> None:
    assert window is not None
    found = window.findChild(QPushButton, name)
    assert found is not None
    qtbot.mouseClick(found, Qt.MouseButton.LeftButton)


def test_the_first_start_asks_and_remembers_the_answer(make: Make, qtbot: QtBot) -> None:
    application = make()
    application.start()
    assert application.main is not None
    assert application.main.first_run.isVisible()

    click(application.main, "first-start", qtbot)

    assert application.main.cluster.isVisible()
    assert make().preferences.current.mode == "master"


def test_one_click_lends_this_computer(make: Make, server: Server, qtbot: QtBot) -> None:
    application = make()
    application.start()
    connect(application, qtbot)

    click(application.main, "first-share", qtbot)

    assert application.main is None
    assert application.worker is not None
    assert application.worker.isVisible()
    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])
    qtbot.waitUntil(lambda: "worker" in server.backend.held)


def test_lending_gives_up_the_own_model_first(make: Make, server: Server, qtbot: QtBot) -> None:
    application = make()
    application.preferences.change(mode="master")
    application.start()
    opened: list[Listener] = []
    connect(application, qtbot)
    application.backend.open_listener(0).then(opened.append)
    server.update(model=ModelState(name="big", state="ready", plan=PLAN))
    qtbot.waitUntil(
        lambda: bool(
            (state := application.backend.state) and state.listeners and state.model.name == "big"
        )
    )

    application._share()

    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])
    qtbot.waitUntil(lambda: server.backend.state().model.state == "none")
    qtbot.waitUntil(lambda: server.backend.state().listeners == ())


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


def going_on(make: Make, server: Server, qtbot: QtBot, *, tray: bool) -> Application:
    """Return a program whose window is closed while other programs can use the model."""
    application = make(tray=tray)
    application.preferences.change(mode="master")
    application.start()
    server.update(listeners=(Listener(host="127.0.0.1", port=8000),))
    backend = application.backend
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.listeners))
    assert application.main is not None
    application.main.close()
    return application


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


def test_quitting_in_the_tray_really_stops_the_lending(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.start(worker=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    connect(application, qtbot)
    qtbot.waitUntil(lambda: bool(server.backend.roles))

    heard: list[str] = []
    application.ending.connect(lambda: heard.append("ending"))
    application.ended.connect(lambda: heard.append("ended"))

    assert application.tray is not None
    with qtbot.waitSignal(application.ended):
        application.tray.quit.trigger()

    assert heard == ["ending", "ended"]
    assert server.backend.roles[-1] == RoleRequest(worker=False)
    assert server.backend.stopped.is_set()


def test_closing_a_worker_hides_it_in_the_tray_and_lends_on(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.start(worker=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    connect(application, qtbot)
    worker = application.worker
    assert worker is not None
    assert application.tray is not None

    worker.close()
    assert not worker.isVisible()
    application.tray.open.trigger()

    assert worker.isVisible()
    assert not server.backend.stopped.is_set()


def test_a_tray_that_came_since_is_used_at_once(make: Make) -> None:
    application = make(tray=True)
    application.start(worker=True)
    assert application.tray is None  # not looked for yet
    assert application.worker is not None

    application.worker.close()

    assert application.tray is not None
    assert not application.worker.isVisible()


def test_without_a_tray_the_only_window_never_just_disappears(make: Make, qtbot: QtBot) -> None:
    application = make(tray=False)
    application.start(worker=True)
    worker = application.worker
    assert worker is not None

    worker.close()
    assert worker.isVisible()
    question = worker.findChild(Confirmation)
    assert question is not None
    qtbot.mouseClick(question.no, Qt.MouseButton.LeftButton)
    assert worker.isVisible()
    worker.close()
    with qtbot.waitSignal(application.ended):
        for asked in worker.findChildren(Confirmation):
            if asked.isVisible():
                qtbot.mouseClick(asked.yes, Qt.MouseButton.LeftButton)


def test_a_request_brings_the_hidden_window_back_once(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.start(worker=True, hidden=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    connect(application, qtbot)
    worker = application.worker
    assert worker is not None
    assert not worker.isVisible()

    asks = Pairing(
        id="p1", node_id="9" * 64, name="Den", role="worker", state="confirm", code="427918"
    )
    server.update(pairings=(asks,))
    qtbot.waitUntil(worker.isVisible)
    worker.close()
    server.update(pairings=(asks,), notices=())
    qtbot.waitUntil(lambda: application.backend.state is not None)

    assert not worker.isVisible()


def test_a_node_that_was_started_again_is_told_that_it_lends(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make()
    first = Server()
    ports = [first.port, server.port]
    application.backend._find_or_start = lambda: Endpoint(port=ports.pop(0), token=TOKEN)
    application.start(worker=True)
    qtbot.waitUntil(lambda: len(first.backend.roles) == 1)
    connect(application, qtbot)

    first.close()

    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])


def test_a_worker_may_go_back_to_chatting(make: Make, server: Server, qtbot: QtBot) -> None:
    application = make(tray=True)
    application.start(worker=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    connect(application, qtbot)

    click(application.worker, "worker-chat", qtbot)

    assert application.worker is None
    assert application.tray is None
    assert application.main is not None
    assert application.main.isVisible()
    qtbot.waitUntil(lambda: server.backend.roles[-1:] == [RoleRequest(worker=False)])


@pytest.mark.parametrize("mode", ["master", "worker"])
def test_it_starts_with_the_computer_only_if_its_owner_ticks_that(
    make: Make, qtbot: QtBot, place: FilePlace, mode: str
) -> None:
    application = make()
    application.preferences.change(mode=mode)
    application.start()
    if application.main is not None:
        application.main.go(application.main.settings)
        box = application.main.settings.start
    else:
        assert application.worker is not None
        box = application.worker.start
    assert box.isVisible()
    assert (box.isChecked(), place.read()) == (False, None)

    box.click()
    assert (box.isChecked(), place.read()) == (True, [sys.executable, "-m", "potluck_app"])
    place.remove()  # in the system's own settings
    box.hide()
    box.show()

    assert not box.isChecked()


def test_a_start_with_the_computer_that_cannot_be_set_is_told(
    make: Make, qtbot: QtBot, place: FilePlace
) -> None:
    place.file.parent.write_text("a file in the way")
    application = make()
    application.preferences.change(mode="worker")
    application.start()
    assert application.worker is not None

    with qtbot.waitSignal(application.backend.problem) as told:
        application.worker.start.click()

    assert told.args is not None
    assert "cannot be changed" in told.args[0]
    assert not application.worker.start.isChecked()


def test_a_main_computer_starts_hidden_in_the_tray_until_it_is_opened(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.preferences.change(mode="master")
    application.start(hidden=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    assert application.main is None
    assert application.tray is not None
    assert application.tray.status.text() == "Potluck is ready."
    assert application.backend.endpoint is None  # nothing runs that nobody needs

    application.tray.open.trigger()

    assert application.main is not None
    assert application.main.isVisible()
    assert application.tray is None
    qtbot.waitUntil(lambda: "window" in server.backend.held)


def test_a_hidden_start_shows_the_window_to_who_starts_it_again(make: Make, qtbot: QtBot) -> None:
    """As it does in the end on a desktop that has no tray."""
    application = make(tray=False)
    application.preferences.change(mode="master")
    application.start(hidden=True)
    assert application.main is None

    application.show()

    assert application.main is not None
    assert application.main.isVisible()
    connect(application, qtbot)
