"""How the program begins and ends: which window, which holder, what is given back."""

import sys
from pathlib import Path

import msgspec
import pytest
from fake_backend import PLAN, TOKEN, Server
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from started import Make, click, connect, going_on

from potluck.api.values.pairing import Pairing
from potluck.api.values.schema import Listener, ModelState, RoleRequest
from potluck_app.http import Endpoint
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    # The offscreen platform has no tray of its own and no order of windows.
    pytest.mark.qt_log_ignore("systemTrayWindowChanged", r"does not support raise\(\)"),
]


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

    application.share()

    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])
    qtbot.waitUntil(lambda: server.backend.state().model.state == "none")
    qtbot.waitUntil(lambda: server.backend.state().listeners == ())


def test_a_window_opens_again_where_it_was(make: Make, qtbot: QtBot, tmp_path: Path) -> None:
    written = tmp_path / "opened"
    application = make(own_command=(sys.executable, "-c", f"open({str(written)!r}, 'w').close()"))
    application.preferences.change(mode="master")
    application.start()
    connect(application, qtbot)
    main = application.main
    assert main is not None
    application.chat.send("Hello")
    qtbot.waitUntil(lambda: not application.chat.list.is_any_busy)
    main.go(main.settings)
    chat = application.chat.shown_id

    with qtbot.waitSignals([application.ending, application.ended], order="strict"):
        main.settings.update_card.open_again.click()
    opened = application.next_window.open()
    following = make()
    following.start()

    assert opened is not None
    assert opened.wait(30) == 0
    assert written.exists()
    assert following.main is not None
    assert following.main.settings.isVisible()
    qtbot.waitUntil(lambda: following.chat.shown_id == chat)
    assert make().preferences.current.back_to is None  # the window after that begins as always


@pytest.mark.parametrize("why", ["a reply", "a program that is gone"])
def test_a_window_that_cannot_open_again_says_so_and_stays(
    make: Make, qtbot: QtBot, why: str
) -> None:
    program = sys.executable if why == "a reply" else "/nowhere/potluck-window"
    application = make(own_command=(program,))
    application.preferences.change(mode="master")
    application.start()
    connect(application, qtbot)
    if why == "a reply":
        application.chat.list.set_busy("c1", True)
    ended: list[None] = []
    application.ended.connect(lambda: ended.append(None))

    with qtbot.waitSignal(application.backend.problem):
        application._open_again()

    assert not ended
    assert application.main is not None
    assert application.main.isVisible()


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


def became(server: Server, role: str, handed_over: str) -> None:
    node = msgspec.structs.replace(server.backend.state().node, role=role, handed_over=handed_over)
    server.update(node=node)


def test_the_tray_opens_the_settings(make: Make, server: Server, qtbot: QtBot) -> None:
    application = going_on(make, server, qtbot, tray=True)
    assert application.tray is not None
    assert application.main is not None

    application.tray.settings.trigger()

    assert application.main.settings.isVisible()


def test_a_helper_that_was_made_the_main_computer_shows_the_chat(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make()
    application.start(worker=True)
    connect(application, qtbot)
    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])

    became(server, "master", "main")

    qtbot.waitUntil(lambda: application.main is not None)
    assert application.worker is None
    assert application.preferences.current.mode == "master"
    qtbot.waitUntil(lambda: server.backend.roles[-1] == RoleRequest(worker=False))


def test_one_that_was_made_it_without_its_window_never_lends_itself_again_by_itself(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make()
    became(server, "master", "main")
    application.start(worker=True)

    qtbot.waitUntil(lambda: application.main is not None)
    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=False)])


def test_the_main_computer_that_handed_over_shows_that_it_helps(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make()
    application.preferences.change(mode="master")
    application.start()
    connect(application, qtbot)

    became(server, "worker", "helper")

    qtbot.waitUntil(lambda: application.worker is not None)
    assert application.main is None
    assert application.preferences.current.mode == "worker"
    qtbot.waitUntil(lambda: server.backend.roles == [RoleRequest(worker=True)])
