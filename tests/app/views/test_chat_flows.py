"""What can be done with a chat: versions, options, files, search, the list, a full context."""

from pathlib import Path

import msgspec
import pytest
from fake_backend import PLAN
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtWidgets import QFileDialog, QLineEdit, QPushButton
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.chats.values import Settings, Stats
from potluck_app.http import Problem
from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.main_window import MainWindow
from potluck_app.views.message import ReplyMessage, stats_line
from potluck_app.views.toast import Toast
from potluck_app.views.user_message import UserMessage

pytestmark = pytest.mark.qt

STATS = Stats(tokens=20, tokens_per_s=8.0, time_to_first_token_s=1.2, prompt_tokens=600)
CTRL = Qt.KeyboardModifier.ControlModifier


def ask(window: MainWindow, backend: ScriptedBackend, text: str, reply: str = "so") -> None:
    window.chat.composer.sent.emit(text, ())
    backend.replies[-1].text.emit(reply)
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))


def click(window: MainWindow, name: str, qtbot: QtBot) -> None:
    def visible() -> list[QPushButton]:
        return [b for b in window.findChildren(QPushButton, name) if b.isVisible()]

    qtbot.waitUntil(lambda: len(visible()) == 1)
    qtbot.mouseClick(visible()[0], Qt.MouseButton.LeftButton)


def own(window: MainWindow) -> UserMessage:
    view = window.chat.transcript.last_own()
    assert view is not None
    return view


def last(window: MainWindow) -> ReplyMessage:
    view = window.chat.transcript.last_reply()
    assert view is not None
    return view


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
        ({}, "8.0 tok/s · 20 tokens · 1.2 s to first token"),
        ({"loading_s": 12.0}, "8.0 tok/s · 20 tokens · 1.2 s to first token · 12 s to load before"),
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
    assert "cat.png is a picture" in composer.trouble.text()
    remove = composer.findChild(type(composer.add), "chip-remove-0")
    assert remove is not None
    qtbot.mouseClick(remove, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert [m.text for m in backend.chats[-1]] == ["b.md:\n```\ntext of b.md\n```"]
    assert own(window).chips.isVisible()
    assert not composer.chips.isVisible()


def test_a_message_that_is_far_too_long_stays_and_says_why(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    composer = window.chat.composer
    composer.text.setPlainText("x" * 200_001)

    qtbot.mouseClick(composer.button, Qt.MouseButton.LeftButton)

    assert "200,001 characters" in composer.trouble.text()
    assert len(composer.text.toPlainText()) == 200_001
    assert backend.chats == []


# --- options


def test_the_options_of_a_chat_are_set_in_the_drawer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    drawer = window.chat.drawer
    qtbot.keyClick(window, Qt.Key.Key_I, CTRL)
    assert drawer.isVisible()
    qtbot.keyClicks(drawer.system, "Be brief.")
    qtbot.keyClicks(drawer.fields["temperature"], "0,3")
    qtbot.keyClicks(drawer.fields["seed"], "7")

    ask(window, backend, "How?")

    assert backend.settings == [Settings(system="Be brief.", temperature=0.3, seed=7)]
    qtbot.keyClick(window, Qt.Key.Key_N, CTRL)
    assert drawer.fields["temperature"].text() == drawer.system.toPlainText() == ""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("temperature", "hot", "Temperature is a number of 0 to 100."),
        ("top_p", "1.5", "Top-p is a number of 0.01 to 1."),
        ("max_tokens", "0", "Maximum tokens is a whole number of 1 or more."),
        ("min_p", "nan", "Min-p is a number of 0 to 1."),
    ],
)
def test_a_number_that_is_none_is_told(
    window: MainWindow, chat: Chat, qtbot: QtBot, name: str, text: str, sentence: str
) -> None:
    window.chat.toggle_options()

    qtbot.keyClicks(window.chat.drawer.fields[name], text)

    assert window.chat.drawer.error.text() == sentence
    assert getattr(chat.settings, name) != text


def test_a_preset_is_saved_chosen_and_deleted(window: MainWindow, chat: Chat, qtbot: QtBot) -> None:
    window.chat.toggle_options()
    drawer = window.chat.drawer
    qtbot.keyClicks(drawer.system, "Be brief.")
    qtbot.keyClicks(drawer.name, "Brief")
    qtbot.keyClick(drawer.name, Qt.Key.Key_Return)
    assert drawer.presets.text() == "Brief"

    menu = drawer.presets_menu()
    exact = next(a for a in menu.actions() if a.text() == "Exact")
    exact.trigger()
    assert chat.settings == Settings(system="Be brief.", temperature=0.2, top_p=0.9)
    brief = next(a for a in drawer.presets_menu().actions() if a.text() == "Brief")
    brief.trigger()
    assert chat.settings == Settings(system="Be brief.")
    next(a for a in drawer.presets_menu().actions() if a.text() == "Delete “Brief”").trigger()
    assert drawer.presets.text() == "Custom"


def test_a_longer_context_is_loaded_from_the_drawer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model(context=2048)))
    window.chat.toggle_options()
    qtbot.keyClicks(window.chat.drawer.fields["context"], "1024")
    assert not window.chat.drawer.load.isVisible()
    assert window.chat._context_text.text() == "Context 0 / 1k"

    window.chat.drawer.fields["context"].clear()
    qtbot.keyClicks(window.chat.drawer.fields["context"], "4096")

    assert window.chat.drawer.load.isVisible()


# --- the list


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


# --- a full context


def fill(window: MainWindow, backend: ScriptedBackend, context: int) -> None:
    backend.say(home(model=running_model(context=context)))
    ask(window, backend, "How?", "so")


def test_the_meter_is_always_there_and_warns(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    assert window.chat._context_text.text() == "Context 0"
    tones: list[str] = []

    for context in (2048, 700, 640):
        backend.say(home(model=running_model(context=context)))
        if context == 2048:
            ask(window, backend, "How?")
        tones.append(window.chat._context_meter._tone)

    assert tones == ["accent", "warn", "err"]
    assert window.chat._context_text.text() == "Context 620 / 640"


def test_a_full_context_offers_a_longer_one_that_fits(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    fill(window, backend, 640)
    assert "nearly full" in window.chat.advice.text

    click(window, "advice-longer", qtbot)
    asked = backend.last("/cluster/plan")
    assert asked.body.context == 2048
    asked.call.done.emit(PLAN)
    assert "about 120 tok/s" in window.chat.advice.text
    click(window, "advice-load", qtbot)
    backend.say(home(model=running_model(context=2048)))
    ask(window, backend, "And?")

    assert window.chat.advice.text == ""


def test_a_longer_context_that_does_not_fit_says_why_and_offers_the_rest(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    fill(window, backend, 640)
    click(window, "advice-longer", qtbot)

    backend.last("/cluster/plan").call.failed.emit(Problem("It needs 2 GB more memory."))

    assert window.chat.advice.text == "It needs 2 GB more memory."
    assert [name for name, _ in window.chat.advice.actions] == ["summary", "new"]


def test_a_message_that_is_too_long_goes_on_in_a_new_chat_with_a_summary(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    ask(window, backend, "How?", "so")
    window.chat.composer.sent.emit("a whole book", ())
    backend.replies[-1].finished.emit(ReplyEnd(error="It is too long.", code="prompt"))
    assert "longer than the context" in window.chat.advice.text

    click(window, "advice-summary", qtbot)
    assert [m.text for m in backend.chats[-1][:2]] == ["How?", "so"]
    assert "Summarise" in backend.chats[-1][2].text
    backend.replies[-1].text.emit("They spoke of so.")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert chat.shown_id is None
    assert chat.settings.system.endswith("They spoke of so.")
    assert window.chat.composer.text.toPlainText() == "a whole book"


def test_the_advice_can_be_closed_and_a_new_chat_takes_the_options_along(
    window: MainWindow, backend: ScriptedBackend, chat: Chat, qtbot: QtBot
) -> None:
    chat.set_settings(Settings(temperature=0.5))
    fill(window, backend, 640)
    window.chat.advice.act("close")
    assert window.chat.advice.text == ""

    ask(window, backend, "And?")
    click(window, "advice-new", qtbot)

    assert chat.shown_id is None
    assert chat.settings == Settings(temperature=0.5)


def test_formulas_are_shown_as_code(
    window: MainWindow, backend: ScriptedBackend, theme: Theme
) -> None:
    ask(window, backend, "How?", r"It is \(\frac{a}{b}\).")

    block = last(window)._blocks[0]
    assert block.toPlainText() == r"It is \frac{a}{b}."  # pyright: ignore[reportAttributeAccessIssue]
