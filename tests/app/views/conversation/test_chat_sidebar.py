"""The list of chats: search, pin, rename, delete and undo, export and import."""

from pathlib import Path

import pytest
from chat_page import ask, click, last
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QLineEdit
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.toast import Toast

pytestmark = pytest.mark.qt

CTRL = Qt.KeyboardModifier.ControlModifier


def test_the_search_finds_a_message_shows_and_marks_it(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "Trees?", "A walnut tree.")
    qtbot.keyClick(window, Qt.Key.Key_N, CTRL)
    qtbot.keyClick(window, Qt.Key.Key_K, CTRL)
    sidebar = window.chat.sidebar
    qtbot.keyClicks(sidebar.search, "walnut")
    model = sidebar.list.model()
    qtbot.waitUntil(lambda: model.index(1, 0).data(ChatListRole.EXCERPT) == "A walnut tree.")

    qtbot.keyClick(sidebar.search, Qt.Key.Key_Return)

    qtbot.waitUntil(lambda: window.chat.transcript.last_reply() is not None)
    block = last(window)._blocks[0]
    qtbot.waitUntil(lambda: len(block.extraSelections()) == 1)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_word_that_is_only_in_the_thoughts_unfolds_them(
    window: MainWindow, backend: ScriptedBackend, chat: Chat
) -> None:
    ask(window, backend, "Trees?", "<think>A walnut?</think>An oak.")
    assert not last(window).thinking.text.isVisible()

    chat.revealed.emit(1, "walnut")

    assert last(window).thinking.text.isVisible()


def test_a_search_that_finds_nothing_says_so(window: MainWindow, qtbot: QtBot) -> None:
    sidebar = window.chat.sidebar

    qtbot.keyClicks(sidebar.search, "walnut")

    qtbot.waitUntil(sidebar.nothing.isVisible)
    assert sidebar.nothing.text() == "No chat contains “walnut”. Try fewer or shorter words."
    sidebar.search.clear()
    assert not sidebar.nothing.isVisible()


def test_a_chat_is_pinned_and_renamed_in_its_row(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "one")
    sidebar = window.chat.sidebar
    row = sidebar.list.model().index(1, 0)
    sidebar.menu_for(row).actions()[0].trigger()
    assert sidebar.list.model().index(0, 0).data() == "Pinned"

    row = sidebar.list.model().index(1, 0)
    next(a for a in sidebar.menu_for(row).actions() if a.text() == "Rename").trigger()
    editor = sidebar.list.findChild(QLineEdit, "chat-title")
    assert editor is not None
    editor.setText("Better")
    qtbot.keyClick(editor, Qt.Key.Key_Return)

    qtbot.waitUntil(lambda: sidebar.list.model().index(1, 0).data() == "Better")


def test_the_delete_key_deletes_and_the_toast_brings_back(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "one")
    sidebar = window.chat.sidebar
    with qtbot.waitActive(window):
        window.activateWindow()
    sidebar.list.setFocus()
    qtbot.keyClick(sidebar.list, Qt.Key.Key_Delete)
    assert sidebar.list.model().rowCount() == 0

    click(window, "chat-undo", qtbot)

    assert sidebar.list.model().rowCount() == 2
    assert not sidebar.toast.isVisible()


def test_a_toast_goes_by_itself_and_then_the_way_back_is_gone(qtbot: QtBot) -> None:
    called: list[str] = []
    toast = Toast("undo", lambda: called.append("undo"), lambda: called.append("gone"), shown_ms=1)
    qtbot.addWidget(toast)
    toast.offer("Deleted: one")

    qtbot.waitUntil(lambda: called == ["gone"])

    assert not toast.isVisible()


def test_a_chat_is_exported_and_imported_by_file_dialogs(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot, tmp_path: Path
) -> None:
    ask(window, backend, "one?")
    sidebar = window.chat.sidebar
    row = sidebar.list.model().index(1, 0)
    next(a for a in sidebar.menu_for(row).actions() if "Markdown" in a.text()).trigger()
    dialog = sidebar.findChild(QFileDialog)
    assert dialog is not None
    assert dialog.selectedFiles()[0].endswith("one_.md")
    path = tmp_path / "one.md"
    dialog.fileSelected.emit(str(path))
    dialog.reject()
    qtbot.waitUntil(lambda: str(path) in sidebar.toast.text.whole_text())

    sidebar._chat.import_file(path)

    qtbot.waitUntil(lambda: sidebar.list.model().rowCount() == 3)
    assert last(window).message.text == "so"
