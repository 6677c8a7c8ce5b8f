"""The tray's menu, and waiting for a tray."""

import msgspec
import pytest
from PySide6.QtCore import QObject
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QSystemTrayIcon
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.hub import Download
from potluck.api.values.schema import Listener, RoleRequest
from potluck_app import resources
from potluck_app.theme import Theme
from potluck_app.tray import Tray, TrayWaiter
from potluck_app.tray_icon import Mark, icon_for, marked

pytestmark = pytest.mark.qt


@pytest.fixture
def tray(qtbot: QtBot, theme: Theme, backend: ScriptedBackend) -> Tray:
    return Tray(theme, backend, backend)


def lend(
    backend: ScriptedBackend,
    *,
    paused: bool = False,
    to: tuple[str, ...] = (),
    leaving: bool = False,
) -> None:
    state = home()
    node = msgspec.structs.replace(
        state.node, role="worker", paused=paused, lent_to=to, leaving=leaving
    )
    backend.say(msgspec.structs.replace(state, node=node))


def test_the_menu_says_whom_this_computer_helps(tray: Tray, backend: ScriptedBackend) -> None:
    lend(backend)
    assert tray.status.text() == "Ready to join"

    lend(backend, to=("Tom & Ann's PC",))

    assert tray.status.text() == "Helping Tom && Ann's PC · Ready"
    assert not tray.status.isEnabled()


def test_a_pause_by_itself_is_shown_with_its_reason(tray: Tray, backend: ScriptedBackend) -> None:
    state = home()
    backend.say(
        msgspec.structs.replace(state, node=msgspec.structs.replace(state.node, withheld="battery"))
    )

    assert tray.status.text() == (
        "Paused by itself · This computer runs on its battery. It helps again a minute after that."
    )


def test_pause_and_resume_ask_the_node(tray: Tray, backend: ScriptedBackend) -> None:
    lend(backend)
    assert not tray.resume.isVisible()
    tray.pauses.actions()[2].trigger()
    assert backend.last("/cluster/role").body == RoleRequest(paused=True)

    lend(backend, paused=True)
    assert not tray.pauses.menuAction().isVisible()
    tray.resume.trigger()

    assert backend.last("/cluster/role").body == RoleRequest(paused=False)


def test_one_that_leaves_says_what_it_waits_for_and_may_free_its_memory_now(
    tray: Tray, backend: ScriptedBackend
) -> None:
    lend(backend, paused=True, to=("Desk",), leaving=True)
    assert tray.status.text() == "Leaving · This computer still helps Desk, for at most 30 seconds."
    tray.free.trigger()

    assert backend.last("/cluster/role").body == RoleRequest(free_now=True)


def test_the_icon_shows_what_this_computer_does(tray: Tray, backend: ScriptedBackend) -> None:
    seen = {tray.mark}
    pictures = [tray._icon.icon().pixmap(22, 22).toImage()]
    for change in (
        lambda: lend(backend, to=("Desk",)),
        lambda: lend(backend, paused=True, to=("Desk",)),
        backend.lose,
    ):
        change()
        seen.add(tray.mark)
        pictures.append(tray._icon.icon().pixmap(22, 22).toImage())

    assert seen == {"idle", "busy", "paused", "error"}
    assert all(a != b for number, a in enumerate(pictures) for b in pictures[:number])
    lend(backend)
    assert tray.mark == "idle"
    assert tray._icon.icon().pixmap(22, 22).toImage() == pictures[0]


@pytest.mark.parametrize("mark", ["busy", "paused", "error"])
def test_a_mark_can_be_seen_in_the_smallest_tray(theme: Theme, mark: Mark) -> None:
    plain, shown = resources.app_icon(), marked(resources.app_icon(), mark, theme.tokens)

    before, after = (icon.pixmap(16, 16).toImage() for icon in (plain, shown))

    changed = sum(before.pixel(x, y) != after.pixel(x, y) for x in range(16) for y in range(16))
    assert 30 < changed < 130  # of 256: the mark, and most of the icon is left


@pytest.mark.parametrize("mark", ["idle", "busy", "paused", "error"])
def test_macos_gets_a_shape_that_it_colours_itself(theme: Theme, mark: Mark) -> None:
    shape = icon_for(mark, theme.tokens, system="darwin")

    assert shape.isMask()
    assert not icon_for(mark, theme.tokens, system="linux").isMask()
    seen = shape.pixmap(22, 22).toImage()
    inks = {QColor.fromRgba(seen.pixel(x, y)).name() for x in range(22) for y in range(22)}
    assert inks == {"#000000"}


def test_open_and_quit_are_asked_for(tray: Tray, qtbot: QtBot) -> None:
    with qtbot.waitSignal(tray.open_requested):
        tray.open.trigger()
    with qtbot.waitSignal(tray.quit_requested):
        tray.quit.trigger()


def test_the_settings_are_asked_for(tray: Tray, qtbot: QtBot) -> None:
    with qtbot.waitSignal(tray.settings_requested):
        tray.settings.trigger()


def test_a_click_on_the_icon_opens_the_window(tray: Tray, qtbot: QtBot) -> None:
    icon = tray.findChild(QSystemTrayIcon)
    assert icon is not None

    with qtbot.waitSignal(tray.open_requested):
        icon.activated.emit(QSystemTrayIcon.ActivationReason.Trigger)
    with qtbot.assertNotEmitted(tray.open_requested):
        icon.activated.emit(QSystemTrayIcon.ActivationReason.Context)


def test_a_tray_that_comes_late_is_waited_for(qtbot: QtBot, backend: QObject) -> None:
    answers = iter((False, False, True, True))
    waiter = TrayWaiter(backend, lambda: next(answers), patience_ms=5000, poll_ms=10)

    with qtbot.waitSignal(waiter.decided) as decided:
        waiter.start()

    assert decided.args == [True]


def test_without_a_tray_that_is_said_in_the_end(qtbot: QtBot, backend: QObject) -> None:
    waiter = TrayWaiter(backend, lambda: False, patience_ms=20, poll_ms=10)

    with qtbot.waitSignal(waiter.decided) as decided:
        waiter.start()

    assert decided.args == [False]


def test_each_thing_that_goes_on_has_a_line_of_its_own(
    qtbot: QtBot, theme: Theme, backend: ScriptedBackend
) -> None:
    tray = Tray(theme, backend, backend, lends=False)
    running = Download(
        id="d", model="anna/tiny-GGUF", variant="Q4_K_M", state="running", done=1, total=2
    )

    backend.say(home(listeners=(Listener(host="127.0.0.1", port=8000),)))
    assert tray.status.text() == "Other programs can use the model on port 8000."
    assert not tray.more.isVisible()

    backend.say(home(listeners=(Listener(host="127.0.0.1", port=8000),), downloads=(running,)))
    assert tray.status.text() == "Other programs can use the model on port 8000."
    assert tray.more.text() == "tiny-GGUF is still being downloaded."
    assert tray.more.isVisible()
