"""Whoever cannot see the window can use it: every place the keyboard reaches has a name."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from chat_page import pages_of
from fake_backend import computer
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleEvent
from PySide6.QtWidgets import QAbstractButton, QApplication, QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, pairing, running_model, study_pc

from potluck.api.values.doctor import Diagnosis
from potluck.api.values.schema import Listener, ModelEntry, Notice
from potluck.doctor.sentences import say
from potluck_app.chats.values import Stats
from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.code import CodeText
from potluck_app.views.widgets.dialogs import Confirmation
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.prose import ProseView
from potluck_app.views.worker import WorkerWindow

pytestmark = pytest.mark.qt

STATS = Stats(tokens=2, tokens_per_s=9.0, time_to_first_token_s=0.1)
Make = Callable[..., MainWindow]


def nameless(widgets: Iterable[QWidget]) -> list[str]:
    found: list[str] = []
    for widget in widgets:
        if widget.focusPolicy() == Qt.FocusPolicy.NoFocus:
            continue
        interface = QAccessible.queryAccessibleInterface(widget)
        if interface is None or not interface.text(QAccessible.Text.Name).strip():
            found.append(f"{type(widget).__name__} {widget.objectName()!r}")
    return found


def all_of(window: QWidget) -> list[QWidget]:
    return [window, *window.findChildren(QWidget)]


def full_window(make: Make, backend: ScriptedBackend, qtbot: QtBot) -> MainWindow:
    """A window in which everything that can show something shows it."""
    window = make()
    state = home(
        computer("Mac", "2"),
        study_pc(),
        model=running_model(),
        pairings=(pairing("confirm"),),
        notices=(Notice(id=1, level="warning", text="Mac is slow."),),
    )
    backend.say(state)
    for number, text in enumerate(("Use `x`:\n\n```py\n1\n```\n", "no")):
        window.chat.composer.sent.emit("How?", ())
        backend.replies[-1].text.emit(text)
        end = ReplyEnd(stats=STATS) if number == 0 else ReplyEnd(error="It failed.")
        backend.replies[-1].finished.emit(end)
    for page in pages_of(window):
        window.go(page)
    entry = ModelEntry(name="Qwen", path="/q", nbytes=1)
    backend.last("/cluster/models").call.done.emit((entry,))
    return window


def test_every_place_in_the_main_window_has_a_name(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = full_window(make_window, backend, qtbot)
    assert nameless(all_of(window)) == []

    backend.say(home(listeners=(Listener(host="127.0.0.1", port=8000),)))

    assert nameless(all_of(window)) == []


def test_every_place_in_the_other_windows_has_a_name(
    make_window: Make, backend: ScriptedBackend, theme: Theme, qtbot: QtBot
) -> None:
    first = make_window(first_run=True)
    dialog = first.cluster.open_add_dialog()
    doctor = first.cluster.open_doctor()
    finding = say("firewall_on", "sudo ufw allow 1/tcp", firewall="ufw", port="1")
    backend.last("/cluster/doctor").call.done.emit(Diagnosis(findings=(finding,)))
    question = Confirmation(
        first, title="Remove Mac?", text="It must be added again.", action="Remove"
    )
    worker = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    qtbot.addWidget(worker)
    worker.show()
    backend.say(home(pairings=(pairing("confirm", role="worker"),)))

    for window in (first, dialog, doctor, question, worker):
        assert nameless(all_of(window)) == []


PAGES = ("chat", "cluster", "models", "settings")


def stops_of(window: MainWindow, name: str, qtbot: QtBot) -> list[QWidget]:
    """The places of a page that the Tab key reaches, in its order."""
    page: QWidget = getattr(window, name)
    window.resize(1180, 2400)  # nothing has to be scrolled to
    window.go(page)
    with qtbot.waitActive(window):
        window.activateWindow()
    window.rail_buttons["settings"].setFocus()
    stops: list[QWidget] = []
    for _ in range(120):
        qtbot.keyClick(QApplication.focusWidget() or window, Qt.Key.Key_Tab)
        stop = QApplication.focusWidget()
        assert stop is not None
        if stop in stops:
            break
        stops.append(stop)
    return [stop for stop in stops if page.isAncestorOf(stop)]


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_every_button_of_a_page(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot, name: str
) -> None:
    window = full_window(make_window, backend, qtbot)

    reached = stops_of(window, name, qtbot)

    buttons = getattr(window, name).findChildren(QAbstractButton)
    wanted = [b for b in buttons if b.isVisible() and b.isEnabled() and not _is_qts(b)]
    alone = [b for b in wanted if b.group() is None and (b.isChecked() or not b.autoExclusive())]
    assert len(alone) >= 4
    assert [b.objectName() or b.text() for b in alone if b not in reached] == []
    choices = {id(b.group()): b.group() for b in wanted if b.group() is not None}
    for choice in choices.values():  # the arrow keys go through the rest of it
        assert set(choice.buttons()) & set(reached), choice.buttons()[0].objectName()


@pytest.mark.parametrize("name", PAGES[1:])
def test_the_keyboard_goes_through_a_page_as_one_reads_it(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot, name: str
) -> None:
    window = full_window(make_window, backend, qtbot)

    stops = stops_of(window, name, qtbot)

    places = [QRect(stop.mapTo(window, QPoint(0, 0)), stop.size()) for stop in stops]
    back = [
        f"{after.objectName()} after {before.objectName()}"
        for (before, a), (after, b) in pairwise(zip(stops, places, strict=True))
        if b.bottom() < a.top() or (b.top() < a.bottom() and b.right() < a.left())
    ]
    assert back == []


def _is_qts(button: QAbstractButton) -> bool:
    """Whether Qt put it into a field, such as the one that empties it: the keyboard has keys for that."""
    return isinstance(button.parent(), QLineEdit)


def test_replies_codes_and_banners_are_said_aloud(
    make_window: Make, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    original = QAccessible.updateAccessibility

    def hear(event: QAccessibleEvent) -> None:
        if isinstance(event, QAccessibleAnnouncementEvent):
            said.append(event.message())
        original(event)

    monkeypatch.setattr(QAccessible, "updateAccessibility", hear)
    window = make_window()
    state = home(
        study_pc(),
        pairings=(pairing("confirm"),),
        notices=(Notice(id=1, level="warning", text="Mac is slow."),),
    )
    backend.say(state)
    backend.say(state)  # nothing new, so nothing is said
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].text.emit("So. Or")
    assert said == [
        "Potluck guide: Ready",
        "Study PC wants to join. Code 427 918",
        "Mac is slow.",
        "So.",
    ]
    backend.replies[-1].text.emit(" not.")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert said[4:] == ["Or not."]


def test_the_keyboard_reaches_what_was_written(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = full_window(make_window, backend, qtbot)
    parts = [*window.findChildren(ProseView), *window.findChildren(CodeText)]

    assert {part.focusPolicy() for part in parts} == {Qt.FocusPolicy.StrongFocus}


def test_a_meter_says_its_share(qtbot: QtBot, theme: Theme) -> None:
    meter = Meter(theme, "Progress")
    qtbot.addWidget(meter)

    meter.show_fraction(0.62)

    assert meter.accessibleDescription() == "62 %"


def test_every_place_has_a_name_of_its_own_for_tests(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = full_window(make_window, backend, qtbot)

    assert [b.text() for b in window.findChildren(QPushButton) if not b.objectName()] == []
