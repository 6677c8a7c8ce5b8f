"""What can be done with a message: versions, drafts, files, and several chats at once."""

from pathlib import Path

import msgspec
import pytest
from chat_page import STATS, ask, click, last, own
from PySide6.QtCore import QCoreApplication, QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.conversation.composer import ComposerText
from potluck_app.views.conversation.message import ReplyMessage, stats_line
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

CTRL = Qt.KeyboardModifier.ControlModifier
NO_KEYS = Qt.KeyboardModifier.NoModifier


# --- versions


def test_a_message_is_edited_in_its_place_and_both_versions_are_there(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "How?", "so")
    qtbot.mouseClick(own(window).edit, Qt.MouseButton.LeftButton)
    editor = own(window)._editor
    assert editor is not None
    assert editor.text.toPlainText() == "How?"
    qtbot.keyClicks(editor.text, " Why?")
    qtbot.keyClick(editor.text, Qt.Key.Key_Return)
    assert [m.text for m in backend.chats[-1]] == ["How? Why?"]
    backend.replies[-1].text.emit("because")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert own(window).versions.text.text() == "2/2"
    qtbot.mouseClick(own(window).versions.previous, Qt.MouseButton.LeftButton)

    assert (own(window).message.text, last(window).message.text) == ("How?", "so")
    assert own(window).versions.text.text() == "1/2"
    assert not own(window).versions.previous.isEnabled()


def test_editing_is_left_by_escape_and_begun_by_the_arrow_up(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "How?")
    qtbot.keyClick(window.chat.composer.text, Qt.Key.Key_Up)
    editor = own(window)._editor
    assert editor is not None

    qtbot.keyClick(editor.text, Qt.Key.Key_Escape)

    assert own(window)._editor is None
    assert len(backend.chats) == 1


def test_a_regenerated_reply_keeps_the_one_before(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "How?", "first")
    qtbot.keyClick(window, Qt.Key.Key_R, CTRL)
    backend.replies[-1].text.emit("second")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    qtbot.mouseClick(last(window).versions.previous, Qt.MouseButton.LeftButton)

    assert last(window).message.text == "first"


def test_a_very_long_message_is_folded(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "word " * 2000)
    assert len(own(window).text.text()) < 4000

    window.chat.transcript.reveal(0, "")
    qtbot.mouseClick(own(window).more, Qt.MouseButton.LeftButton)

    assert len(own(window).text.text()) == len("word " * 2000) - 1
    assert not own(window).more.isVisible()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "8.0 tokens/s · 20 tokens · 1.2 s to first token"),
        (
            {"loading_s": 12.0},
            "8.0 tokens/s · 20 tokens · 1.2 s to first token · 12 s to load before",
        ),
        ({"tokens": 1, "tokens_per_s": 0.0}, "1 token · 1.2 s to first token"),
    ],
)
def test_the_figures_of_a_stopped_reply_are_those_of_any_reply(
    window: MainWindow, backend: ScriptedBackend, changes: dict[str, float], line: str
) -> None:
    stats = msgspec.structs.replace(STATS, **changes)
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].text.emit("so")
    backend.replies[-1].finished.emit(ReplyEnd(stats=stats, stopped=True))

    assert stats_line(last(window).message) == f"Stopped · {line}"


def test_a_reply_that_is_not_whole_says_so_and_is_continued_with_a_click(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].text.emit("so")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS, cut=True))
    reply = last(window)
    assert stats_line(reply.message).startswith("Cut at the limit of tokens · ")

    qtbot.mouseClick(reply.go_on, Qt.MouseButton.LeftButton)
    assert reply.waiting.isVisible()
    backend.replies[-1].text.emit(" and so")
    assert not reply.waiting.isVisible()
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert last(window).message.text == "so and so"
    assert not last(window).go_on.isVisible()


# --- several chats


def test_a_reply_goes_on_in_a_chat_that_is_not_shown(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.chat.composer.sent.emit("one", ())
    reply = backend.replies[-1]
    qtbot.keyClick(window, Qt.Key.Key_N, CTRL)
    assert window.chat.composer.button.text() == "Send"
    reply.text.emit("goes on")
    index = window.chat.sidebar.list.model().index(1, 0)
    assert index.data(ChatListRole.BUSY)

    window.chat.sidebar.list.clicked.emit(index)

    assert last(window).message.text == "goes on"
    assert window.chat.composer.button.text() == "Stop"


def test_each_chat_has_its_own_draft(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "one")
    qtbot.keyClicks(window.chat.composer.text, "half a")
    qtbot.keyClick(window, Qt.Key.Key_N, CTRL)
    assert window.chat.composer.text.toPlainText() == ""

    window.chat.sidebar.list.clicked.emit(window.chat.sidebar.list.model().index(1, 0))

    qtbot.waitUntil(lambda: window.chat.composer.text.toPlainText() == "half a")


# --- files


def test_files_are_attached_shown_taken_off_and_sent(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("a.py", "b.md", "cat.png")]
    for path in paths:
        path.write_text(f"text of {path.name}")
    dropped = QMimeData()
    dropped.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    composer = window.chat.composer

    composer.text.insertFromMimeData(dropped)

    qtbot.waitUntil(lambda: len(composer.draft().attachments) == 2)
    assert "cat.png is no picture" in composer.trouble.text()
    remove = composer.findChild(type(composer.add), "chip-remove-0")
    assert remove is not None
    qtbot.mouseClick(remove, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert [m.text for m in backend.chats[-1]] == ["b.md:\n```\ntext of b.md\n```"]
    assert own(window).chips.isVisible()
    assert not composer.chips.isVisible()


def test_files_may_be_dropped_anywhere_on_the_page(
    window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "notes.md"
    path.write_text("walnuts")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    given = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, NO_KEYS)
    entering = QDragEnterEvent(QPoint(400, 200), *given)

    QCoreApplication.sendEvent(window.chat, entering)
    assert entering.isAccepted()
    QCoreApplication.sendEvent(window.chat, QDropEvent(QPointF(400, 200), *given))

    composer = window.chat.composer
    qtbot.waitUntil(lambda: [a.name for a in composer.draft().attachments] == ["notes.md"])


def test_text_that_is_dragged_over_the_page_is_not_taken(window: MainWindow) -> None:
    data = QMimeData()
    data.setText("walnuts")
    button = Qt.MouseButton.LeftButton
    entering = QDragEnterEvent(QPoint(4, 4), Qt.DropAction.CopyAction, data, button, NO_KEYS)
    entering.ignore()

    QCoreApplication.sendEvent(window.chat, entering)

    assert not entering.isAccepted()


def test_an_edit_during_a_reply_waits_and_says_so(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.chat.composer.sent.emit("How?", ())
    own(window).open_editor()
    editor = own(window)._editor
    assert editor is not None

    qtbot.keyClick(editor.text, Qt.Key.Key_Return)

    assert "Stop the reply" in editor.hint.text()
    assert len(backend.chats) == 1


def test_a_message_that_is_far_too_long_stays_and_says_why(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    composer = window.chat.composer
    composer.text.setPlainText("x" * 200_001)

    qtbot.mouseClick(composer.button, Qt.MouseButton.LeftButton)

    assert "200,001 characters" in composer.trouble.text()
    assert len(composer.text.toPlainText()) == 200_001
    assert backend.chats == []


def test_formulas_are_shown_in_unicode_as_code(
    window: MainWindow, backend: ScriptedBackend, theme: Theme
) -> None:
    ask(window, backend, "How?", r"It is \(\frac{a}{b}\).")

    block = last(window)._blocks[0]
    assert block.toPlainText() == "It is a/b."  # pyright: ignore[reportAttributeAccessIssue]


def test_a_reply_is_edited_into_another_version_that_the_model_reads(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    ask(window, backend, "Name a tree.", "<think>Hm.</think>An oak.")

    qtbot.mouseClick(last(window).edit, Qt.MouseButton.LeftButton)
    editor = last(window).findChild(ComposerText, "editor-text")
    assert editor is not None
    assert editor.toPlainText() == "An oak."
    editor.setPlainText("A walnut.")
    click(window, "editor-send", qtbot)

    qtbot.waitUntil(lambda: last(window).message.text == "A walnut.")
    assert last(window).versions.text.text() == "2/2"
    assert not last(window).stats.text()  # nothing computed it
    assert not chat.is_busy
    ask(window, backend, "And another?")
    assert [m.text for m in backend.chats[-1]] == ["Name a tree.", "A walnut.", "And another?"]


def test_an_edited_reply_can_be_left_as_it_was(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(window, backend, "Name a tree.", "An oak.")
    qtbot.mouseClick(last(window).edit, Qt.MouseButton.LeftButton)
    assert not last(window).copy.isVisible()

    click(window, "editor-cancel", qtbot)

    assert last(window).copy.isVisible()
    assert all(block.isVisible() for block in last(window)._blocks)
    assert last(window).message.text == "An oak."


def test_a_chat_goes_on_from_a_reply_in_a_new_chat(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    ask(window, backend, "Name a tree.", "An oak.")
    ask(window, backend, "Another.", "A beech.")
    first = chat.shown_id
    view = next(v for v in window.chat.transcript._views if v.message.text == "An oak.")
    assert isinstance(view, ReplyMessage)

    qtbot.mouseClick(view.branch, Qt.MouseButton.LeftButton)

    qtbot.waitUntil(lambda: chat.shown_id != first)
    assert [m.text for m in chat.messages.messages] == ["Name a tree.", "An oak."]
    assert chat.title == "Name a tree. (2)"
    ask(window, backend, "How old?", "A hundred years.")
    assert first is not None
    chat.open(first)
    qtbot.waitUntil(lambda: chat.shown_id == first)
    assert [m.text for m in chat.messages.messages][2:] == ["Another.", "A beech."]
