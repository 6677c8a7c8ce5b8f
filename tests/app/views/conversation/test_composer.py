"""Where a question is written: its keys, its height, Send and Stop."""

import pytest
from chat_page import last, write
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.views.conversation.composer import ComposerText
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt


def test_enter_sends_and_shift_enter_is_a_new_line(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    field = window.chat.composer.text
    one_line = field.height()
    qtbot.keyClicks(field, "one")
    qtbot.keyClick(field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(field, "two")
    assert field.height() > one_line

    qtbot.keyClick(field, Qt.Key.Key_Enter)

    assert backend.chats[-1][-1].text == "one\ntwo"
    qtbot.waitUntil(lambda: field.height() == one_line)


def test_enter_begins_a_new_line_for_who_likes_that(window: MainWindow, qtbot: QtBot) -> None:
    text, backend = window.chat.composer.text, window.chat._backend
    assert isinstance(backend, ScriptedBackend)
    window.go(window.settings)
    qtbot.mouseClick(window.settings.enter[0], Qt.MouseButton.LeftButton)
    window.go(window.chat)
    try:
        qtbot.keyClicks(text, "one")
        qtbot.keyClick(text, Qt.Key.Key_Return)
        qtbot.keyClicks(text, "two")
        assert text.toPlainText() == "one\ntwo"
        assert not backend.chats

        qtbot.keyClick(text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)

        assert [m.text for m in backend.chats[0]] == ["one\ntwo"]
    finally:
        window.chat.choose_enter(True)


def test_the_keys_that_send_are_said_as_this_system_names_them(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there is no room for that, not at all."""
    composer = window.chat.composer
    monkeypatch.setattr(ComposerText, "enter_sends", False)
    monkeypatch.setattr("potluck_app.views.conversation.composer.shown", lambda _keys: "⌘↩")

    composer.show_keys()

    assert composer._hint.text() == "⌘↩ to send"
    assert not composer._hint.isHidden()
    monkeypatch.setattr("potluck_app.views.conversation.composer.shown", lambda _keys: "⌘" * 400)
    composer.show_keys()
    assert composer._hint.isHidden()


def test_the_composer_grows_to_eight_lines_and_then_scrolls(window: MainWindow) -> None:
    field = window.chat.composer.text
    heights: list[int] = []
    for lines in (1, 8, 9, 200):
        field.setPlainText("\n" * (lines - 1))
        heights.append(field.height())

    assert heights[0] * 4 < heights[1] == heights[2] == heights[3]


def test_send_becomes_stop_and_escape_stops(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    button = window.chat.composer.button
    assert not button.isEnabled()
    write(window, qtbot, "How?")
    assert (button.text(), button.isEnabled()) == ("Stop", True)
    backend.replies[-1].text.emit("Half of")

    qtbot.keyClick(window, Qt.Key.Key_Escape)

    assert button.text() == "Send"
    assert last(window).message.status == "stopped"
    assert last(window).stats.text() == "Stopped"

    write(window, qtbot, "And?")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert last(window).message.status == "stopped"
