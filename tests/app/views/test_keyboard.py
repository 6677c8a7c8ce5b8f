"""The keyboard: its shortcuts, its way through a page, its ring, and the search in a chat."""

from collections.abc import Callable

import numpy as np
import pytest
import shiboken6
from chat_page import pages_of
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRect, Qt
from PySide6.QtGui import QImage, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QCheckBox, QDialog, QLabel, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model, study_pc

from potluck_app.chats.values import Stats
from potluck_app.preferences import PreferencesFile
from potluck_app.streams import ReplyEnd
from potluck_app.theme import TEXT_SIZES, Theme
from potluck_app.views.main_window import MainWindow
from potluck_app.views.options.shortcuts import TABLE
from potluck_app.views.widgets.focus import FocusRing
from potluck_app.views.widgets.prose import ProseView

pytestmark = pytest.mark.qt

CONTROL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
LEFT = Qt.MouseButton.LeftButton
STATS = Stats(tokens=2, tokens_per_s=9.0, time_to_first_token_s=0.1)
Make = Callable[..., MainWindow]


def talk(window: MainWindow, backend: ScriptedBackend, *replies: str) -> None:
    for number, reply in enumerate(replies):
        window.chat.composer.sent.emit(f"Question {number}?", ())
        backend.replies[-1].text.emit(reply)
        backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    window.chat.transcript.scroll_to_end()


def active(window: MainWindow, qtbot: QtBot) -> MainWindow:
    with qtbot.waitActive(window):
        window.activateWindow()
    return window


def walk(window: QWidget, start: QWidget, qtbot: QtBot, most: int = 80) -> list[QWidget]:
    """The widgets that the Tab key reaches in a window, until it is where it began."""
    start.setFocus()
    stops: list[QWidget] = []
    for _ in range(most):
        qtbot.keyClick(QApplication.focusWidget() or window, Qt.Key.Key_Tab)
        stop = QApplication.focusWidget()
        if stop is None or stop in stops:
            break
        stops.append(stop)
    return stops


# --- shortcuts


def test_the_page_of_shortcuts_names_every_shortcut_of_the_window(
    window: MainWindow, qtbot: QtBot
) -> None:
    active(window, qtbot)
    made = {s.key().toString() for s in window.findChildren(QShortcut) if s.parent() is window}
    listed = {QKeySequence(k).toString() for _, rows in TABLE for row in rows for k in row.keys}
    assert made <= listed

    qtbot.keyClick(window, Qt.Key.Key_Slash, CONTROL)

    dialog = QApplication.activeModalWidget()
    assert dialog is not None
    texts = {each.text() for each in dialog.findChildren(QLabel)}
    assert {row.text for _, rows in TABLE for row in rows} <= texts


def test_the_text_gets_larger_and_the_size_is_remembered(
    window: MainWindow, theme: Theme, preferences: PreferencesFile, qtbot: QtBot
) -> None:
    before = window.rail_buttons["chat"].fontMetrics().height()

    for _ in range(2):
        qtbot.keyClick(window, Qt.Key.Key_Plus, CONTROL)
    assert theme.text_size == preferences.current.text_size == 18
    assert window.rail_buttons["chat"].fontMetrics().height() > before
    assert window.settings.text_size.text() == "129 %"
    for _ in range(len(TEXT_SIZES)):
        qtbot.keyClick(window, Qt.Key.Key_Minus, CONTROL)
    assert theme.text_size == TEXT_SIZES[0]
    qtbot.keyClick(window, Qt.Key.Key_0, CONTROL)

    assert preferences.current.text_size == theme.text_size == 14


def test_at_the_largest_text_no_page_is_wider_than_its_place(
    window: MainWindow, backend: ScriptedBackend, theme: Theme, qtbot: QtBot
) -> None:
    backend.say(home(study_pc(), model=running_model()))
    window.resize(700, 600)
    theme.set_text_size(TEXT_SIZES[-1])

    for page in pages_of(window):
        window.go(page)
        qtbot.waitUntil(lambda page=page: page.minimumSizeHint().width() <= page.width() < 640)


def test_the_last_code_block_is_copied_also_from_an_older_reply(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    active(window, qtbot)
    talk(window, backend, "```py\nfirst\n```\n\n```py\nsecond\n```\n", "No code.")

    qtbot.keyClick(window, Qt.Key.Key_Semicolon, CONTROL | SHIFT)

    assert QApplication.clipboard().text() == "second"


# --- the way of the Tab key


def test_the_text_of_a_reply_comes_before_its_buttons_and_both_before_the_composer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    active(window, qtbot)
    talk(window, backend, "First.\n\n```py\n1\n```\n", "Second.")

    qtbot.waitUntil(lambda: all(view.isVisible() for view in window.findChildren(ProseView)))
    stops = walk(window, window.chat.options, qtbot)

    names = [stop.objectName() or stop.accessibleName() for stop in stops]
    actions = ["reply-copy", "reply-edit", "reply-branch"]
    own = ["message-copy", "message-edit"]
    wanted = [*own, "Reply", "code-copy", "Code", *actions, *own, "Reply"]
    wanted += ["reply-copy", "reply-regenerate", "reply-edit", "reply-branch", "composer-text"]
    assert names[: len(wanted)] == wanted


def pixels(image: QImage) -> np.ndarray:
    image = image.convertToFormat(QImage.Format.Format_RGB32)
    return np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1).copy()


def test_every_place_that_the_keyboard_reaches_shows_it(
    window: MainWindow, backend: ScriptedBackend, theme: Theme, qapp: QApplication, qtbot: QtBot
) -> None:
    FocusRing(theme, qapp, window)
    active(window, qtbot)
    talk(window, backend, "A sentence.\n\n```py\n1\n```\n")
    backend.say(home(study_pc(), model=running_model()))
    window.chat.toggle_options()

    for page in pages_of(window):
        window.go(page)
        seen: set[QWidget] = set()
        for _ in range(60):
            before = window.grab().toImage()
            qtbot.keyClick(QApplication.focusWidget() or window, Qt.Key.Key_Tab)
            qapp.processEvents()
            stop = QApplication.focusWidget()
            assert stop is not None
            if stop in seen:
                break
            seen.add(stop)
            is_framed = stop.property("ring") == "own"
            framed = (stop.parentWidget() if is_framed else None) or stop
            place = QRect(framed.mapTo(window, QPoint(0, 0)), framed.size())
            around = place.adjusted(-4, -4, 4, 4)
            part = around.intersected(window.rect())
            changed = pixels(before.copy(part)) != pixels(window.grab(part).toImage())
            where = f"{page.objectName()}: {stop.objectName() or stop.accessibleName()}"
            assert changed.sum() >= min(stop.width(), stop.height()), where
        assert len(seen) > 2


def first_ink(window: MainWindow, widget: QWidget) -> int:
    """The leftmost column of the window in which something of this widget is drawn."""
    place = QRect(widget.mapTo(window, QPoint(0, 0)), widget.size())
    drawn = pixels(window.grab(place).toImage())
    return place.left() + int(np.argmax((drawn != drawn[0, 0]).any(axis=0)))


def test_the_actions_of_a_reply_begin_where_its_text_begins(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    talk(window, backend, "Have a look.")
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    text = reply.findChild(ProseView)
    assert text is not None
    qtbot.waitUntil(lambda: reply.height() >= reply.sizeHint().height())

    assert abs(first_ink(window, reply.copy) - first_ink(window, text)) <= 2


def test_what_is_clicked_has_no_ring(
    window: MainWindow, backend: ScriptedBackend, theme: Theme, qapp: QApplication, qtbot: QtBot
) -> None:
    ring = FocusRing(theme, qapp, window)
    active(window, qtbot)
    talk(window, backend, "A sentence.")
    prose = window.findChildren(ProseView)[0]
    middle = prose.viewport().rect().center()
    qtbot.waitUntil(
        lambda: window.childAt(prose.viewport().mapTo(window, middle)) is prose.viewport()
    )

    qtbot.mouseClick(prose.viewport(), LEFT)
    assert prose.hasFocus()
    assert ring.around is None
    window.chat.composer.text.setFocus()
    prose.setFocus(Qt.FocusReason.TabFocusReason)

    assert ring.around is prose


def test_a_dialog_that_is_deleted_while_it_has_the_ring_harms_nothing(
    window: MainWindow, theme: Theme, qapp: QApplication, qtbot: QtBot
) -> None:
    ring = FocusRing(theme, qapp, window)
    page = QWidget(window)
    dialog = QDialog(page)
    inner = QWidget(dialog)
    stop = QCheckBox("Stop", inner)
    dialog.open()
    qtbot.waitUntil(dialog.isActiveWindow)
    stop.setFocus(Qt.FocusReason.TabFocusReason)
    assert ring.around is stop

    with qtbot.captureExceptions() as exceptions:
        page.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)

    assert not shiboken6.isValid(stop)
    assert exceptions == []


# --- find in this chat


def test_words_are_found_one_message_after_the_other(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    active(window, qtbot)
    talk(window, backend, "A red apple.", "A pear.", "Two red cherries.")
    bar = window.chat.find_bar

    qtbot.keyClick(window, Qt.Key.Key_F, CONTROL)
    qtbot.keyClicks(bar.text, "red")
    assert bar.count.text() == "1 of 2"
    assert len(window.findChildren(ProseView)[0].extraSelections()) == 1
    qtbot.keyClick(bar.text, Qt.Key.Key_Return)
    assert bar.count.text() == "2 of 2"
    qtbot.keyClick(bar.text, Qt.Key.Key_Return)
    assert bar.count.text() == "1 of 2"
    qtbot.keyClick(bar.text, Qt.Key.Key_Return, SHIFT)
    assert bar.count.text() == "2 of 2"
    qtbot.keyClicks(bar.text, "dish")
    assert bar.count.text() == "Not found"
    qtbot.keyClick(window, Qt.Key.Key_Escape)

    assert bar.isHidden()
    assert window.chat.composer.text.hasFocus()
    assert not any(view.extraSelections() for view in window.findChildren(ProseView))


def test_the_ring_goes_around_the_words_that_are_seen(
    window: MainWindow,
    backend: ScriptedBackend,
    theme: Theme,
    qapp: QApplication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = FocusRing(theme, qapp, window)
    talk(window, backend, "A sentence.")
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.regenerate.setFocus(Qt.FocusReason.TabFocusReason)
    assert ring._ring is not None
    english = ring._ring.width()

    monkeypatch.setattr("potluck_app.views.widgets.focus.said", lambda _text: "Noch einmal bitte")
    monkeypatch.setattr("potluck_app.views.widgets.words.said", lambda _text: "Noch einmal bitte")
    reply.regenerate.setText("Regenerate")
    reply.regenerate.resize(reply.regenerate.sizeHint())
    reply.copy.setFocus(Qt.FocusReason.TabFocusReason)
    reply.regenerate.setFocus(Qt.FocusReason.TabFocusReason)

    assert ring._ring.width() > english
    assert ring._ring.width() > reply.regenerate.fontMetrics().horizontalAdvance(
        "Noch einmal bitte"
    )


def test_the_ring_of_a_button_in_a_line_reaches_none_of_its_neighbours(
    window: MainWindow, backend: ScriptedBackend, theme: Theme, qapp: QApplication, qtbot: QtBot
) -> None:
    ring = FocusRing(theme, qapp, window)
    active(window, qtbot)
    talk(window, backend, "A sentence.")
    reply = window.chat.transcript.last_reply()
    assert reply is not None

    reply.regenerate.setFocus(Qt.FocusReason.TabFocusReason)

    assert ring.around is reply.regenerate
    assert ring._ring is not None
    right = ring._ring.mapToGlobal(ring._ring.rect().topRight()).x()
    assert right < reply.edit.mapToGlobal(reply.edit.rect().topLeft()).x()
