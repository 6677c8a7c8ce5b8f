"""What a person does in the window, against a real node with the guide: every click goes all the way."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
import shared_kernels
from chat_page import click, last, own
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from potluck import launch
from potluck.api.values.schema import RoleRequest
from potluck.settings import Folders, read_node_file
from potluck_app.backend import Backend
from potluck_app.chats.history import History
from potluck_app.chats.values import Stats
from potluck_app.launcher import find_or_start
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.home.computer_actions import Question
from potluck_app.views.home.doctor import DoctorDialog
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.dialogs import Confirmation

HANG_S = 600  # ends a hang: the first load makes the kernels, on a busy machine slowly
WAIT_MS = 1000 * HANG_S // 2

pytestmark = [pytest.mark.qt, pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(HANG_S)]

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    """One node for all flows of this file, as a person has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        home = tmp_path_factory.mktemp("home")
        shared_kernels.share_with(home)
        folders = Folders.of(home, {})
        yield folders
        if (client := launch.find(folders)) is not None:
            client.shutdown()


@pytest.fixture
def real(
    qapp: QApplication, qtbot: QtBot, folders: Folders, tmp_path: Path
) -> Iterator[MainWindow]:
    """The window over that node, with chats of its own."""
    backend = Backend(lambda: find_or_start(folders))
    history = History(tmp_path / "chats.sqlite")
    chat = Chat(backend, history)
    preferences = PreferencesFile(tmp_path / "window.json")
    preferences.change(mode="master")
    theme = Theme(qapp, "light")
    window = MainWindow(
        theme, backend, chat, preferences, on_share=lambda: None, on_close=lambda: True
    )
    qtbot.addWidget(window)
    window.show()
    chat.start()
    backend.start()
    qtbot.waitUntil(lambda: backend.live_state is not None, timeout=WAIT_MS)
    yield window
    chat.close()
    backend.close()


def say(window: MainWindow, qtbot: QtBot, text: str) -> None:
    """Write a message, send it, and wait for the whole reply."""
    composer = window.chat.composer
    composer.text.setPlainText(text)
    qtbot.mouseClick(composer.button, LEFT)
    until_answered(window, qtbot)


def until_answered(window: MainWindow, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: not window._chat.is_busy, timeout=WAIT_MS)
    assert last(window).message.status == "done", last(window).message


def stats(window: MainWindow) -> Stats:
    """What the node measured of the last reply."""
    measured = last(window).message.stats
    assert measured is not None
    return measured


def answer(window: MainWindow, dialog: Question, value: str, qtbot: QtBot) -> None:
    dialog.value.setText(value)
    qtbot.mouseClick(dialog.yes, LEFT)


def until(qtbot: QtBot, fact: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(fact()), timeout=WAIT_MS)


def test_an_example_is_answered_edited_regenerated_and_found(
    real: MainWindow, qtbot: QtBot
) -> None:
    qtbot.mouseClick(real.chat._examples[0], LEFT)
    until_answered(real, qtbot)
    until(qtbot, lambda: real.chat.pill.text() == "Ready")
    assert real.chat.model.text().startswith("Potluck guide")
    assert stats(real).tokens_per_s > 0

    own(real).open_editor()
    editor = own(real)._editor
    assert editor is not None
    editor.text.setPlainText("How do I add another computer?")
    qtbot.mouseClick(editor.send, LEFT)
    until_answered(real, qtbot)
    assert own(real).versions.text.text() == "2/2"
    first = last(real).message.text
    qtbot.mouseClick(last(real).regenerate, LEFT)
    until_answered(real, qtbot)
    assert last(real).versions.text.text() == "2/2"
    qtbot.mouseClick(last(real).versions.previous, LEFT)
    assert last(real).message.text == first

    word = max(first.replace(".", " ").replace(",", " ").split(), key=len)
    real.chat.sidebar.search.setText(word)
    until(qtbot, lambda: real.chat.sidebar.list.model().rowCount() > 1)


def test_the_options_of_a_chat_hold_for_its_next_message(real: MainWindow, qtbot: QtBot) -> None:
    real.chat.toggle_options()
    limit = real.chat.drawer.fields["max_tokens"]
    qtbot.keyClicks(limit, "4")

    say(real, qtbot, "What is Potluck?")

    assert stats(real).tokens == 4


def test_a_reply_that_was_cut_is_continued(real: MainWindow, qtbot: QtBot) -> None:
    real.chat.toggle_options()
    qtbot.keyClicks(real.chat.drawer.fields["max_tokens"], "4")
    say(real, qtbot, "What is Potluck?")
    cut, prompt = last(real).message, stats(real).prompt_tokens
    assert cut.cut

    qtbot.mouseClick(last(real).go_on, LEFT)
    until_answered(real, qtbot)

    whole = last(real).message
    assert whole.text.startswith(cut.text.rstrip())
    assert len(whole.text) > len(cut.text)
    assert 4 < stats(real).tokens <= 8
    assert abs(stats(real).prompt_tokens - prompt) <= 1  # the node was asked for the rest alone


def test_a_preset_is_saved_and_holds_in_another_chat(real: MainWindow, qtbot: QtBot) -> None:
    real.chat.toggle_options()
    drawer = real.chat.drawer
    qtbot.keyClicks(drawer.fields["max_tokens"], "3")
    qtbot.keyClicks(drawer.name, "Three words")
    click(real, "drawer-save", qtbot)
    say(real, qtbot, "What is Potluck?")
    assert stats(real).tokens == 3
    click(real, "chat-new", qtbot)
    say(real, qtbot, "What is Potluck?")
    assert stats(real).tokens > 3

    click(real, "chat-new", qtbot)
    next(a for a in drawer.presets_menu().actions() if a.text() == "Three words").trigger()
    say(real, qtbot, "What is Potluck?")

    assert drawer.presets.text() == "Three words"
    assert stats(real).tokens == 3


def test_a_text_file_that_is_dropped_is_read_by_the_model(
    real: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    say(real, qtbot, "What is Potluck?")
    alone = stats(real).prompt_tokens
    click(real, "chat-new", qtbot)
    notes = tmp_path / "notes.md"
    notes.write_text("The study has a fast computer. " * 8)
    dropped = QMimeData()
    dropped.setUrls([QUrl.fromLocalFile(str(notes))])
    composer = real.chat.composer

    composer.text.insertFromMimeData(dropped)
    until(qtbot, lambda: composer.draft().attachments)
    say(real, qtbot, "What is Potluck?")

    assert own(real).chips.isVisible()
    assert stats(real).prompt_tokens > alone + 40


@pytest.mark.parametrize("form", ["Markdown", "JSON"])
def test_a_chat_is_exported_deleted_imported_and_goes_on(
    real: MainWindow, qtbot: QtBot, tmp_path: Path, form: str
) -> None:
    say(real, qtbot, "What is Potluck?")
    reply = last(real).message.text
    sidebar, file = real.chat.sidebar, tmp_path / "chat"
    row = sidebar.list.model().index(1, 0)
    next(a for a in sidebar.menu_for(row).actions() if form in a.text()).trigger()
    choose(sidebar.findChildren(QFileDialog), file)
    until(qtbot, file.exists)
    assert real._chat.shown_id is not None
    real._chat.delete(real._chat.shown_id)
    until(qtbot, lambda: sidebar.list.model().rowCount() == 0)

    sidebar.choose_import()
    choose(sidebar.findChildren(QFileDialog), file)
    until(qtbot, lambda: real._chat.messages.rowCount() == 2)
    assert last(real).message.text == reply
    say(real, qtbot, "How do I add another computer?")

    assert real._chat.messages.rowCount() == 4


def test_a_chat_that_is_too_long_goes_on_in_a_new_one_with_a_summary(
    real: MainWindow, qtbot: QtBot
) -> None:
    say(real, qtbot, "What is Potluck?")
    long = "The study has a fast computer. " * 2000
    real.chat.composer.text.setPlainText(long)
    qtbot.mouseClick(real.chat.composer.button, LEFT)
    until(qtbot, lambda: real.chat.advice.text == "What would you like to do?")

    click(real, "advice-summary", qtbot)
    until(qtbot, lambda: real._chat.shown_id is None)

    assert "Summary of the conversation" in real._chat.settings.system
    assert real.chat.composer.text.toPlainText() == long.strip()
    say(real, qtbot, "How do I add another computer?")
    assert last(real).message.text


def too_long(window: MainWindow, qtbot: QtBot, text: str) -> None:
    """Send a message that is longer than the context, and wait for what can be done about it."""
    window.chat.composer.text.setPlainText(text)
    qtbot.mouseClick(window.chat.composer.button, LEFT)
    until(qtbot, lambda: window.chat.advice.text == "What would you like to do?")


def test_a_message_that_is_too_long_may_be_shortened_in_a_new_chat(
    real: MainWindow, qtbot: QtBot
) -> None:
    say(real, qtbot, "What is Potluck?")
    long = "The study has a fast computer. " * 2000
    too_long(real, qtbot, long)
    before = real._chat.shown_id

    click(real, "advice-new", qtbot)

    assert real._chat.shown_id != before
    assert real.chat.composer.text.toPlainText() == long.strip()
    assert not real.chat.advice.text
    say(real, qtbot, "Does anything leave my home network?")
    assert real._chat.messages.rowCount() == 2


def test_a_message_that_is_too_long_is_answered_with_a_longer_context(
    real: MainWindow, qtbot: QtBot
) -> None:
    def context() -> int:
        state = real._backend.live_state
        return state.model.context if state is not None and state.model.state == "ready" else 0

    say(real, qtbot, "What is Potluck?")
    real._backend.load_context(128)
    until(qtbot, lambda: context() == 128)
    too_long(real, qtbot, "The study has a fast computer. " * 20)

    click(real, "advice-longer", qtbot)
    until(qtbot, lambda: "more memory" in real.chat.advice.text)
    click(real, "advice-load", qtbot)
    until(qtbot, lambda: context() == 1024)
    qtbot.mouseClick(last(real).failure.retry, LEFT)
    until_answered(real, qtbot)

    assert last(real).message.text
    assert stats(real).prompt_tokens > 128


def test_two_chats_are_answered_at_once_and_one_is_deleted_and_comes_back(
    real: MainWindow, qtbot: QtBot
) -> None:
    say(real, qtbot, "What is Potluck?")
    first = real._chat.shown_id
    assert first is not None
    real._chat.send("How do I add another computer?")
    real._chat.new()
    say(real, qtbot, "Does anything leave my home network?")
    until(qtbot, lambda: not real._chat._open[first].is_busy if first in real._chat._open else True)
    assert real._chat.list.rowCount() == 3  # the heading, and two chats

    real._chat.delete(first)
    assert real._chat.list.rowCount() == 2
    qtbot.mouseClick(real.chat.sidebar.toast.undo, LEFT)
    assert real._chat.list.rowCount() == 3
    real._chat.open(first)
    until(qtbot, lambda: real._chat.messages.rowCount() == 4)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown for some seconds is shown for half of one."""
    monkeypatch.setattr("potluck_app.views.widgets.banner._PROBLEM_MS", 500)
    monkeypatch.setattr("potluck_app.views.home.cluster._LOOK_MS", 500)


@pytest.mark.usefixtures("hasty")
def test_this_computer_is_renamed_limited_paused_and_looked_for(
    real: MainWindow, qtbot: QtBot
) -> None:
    real.go(real.cluster)
    state = real._backend.live_state
    assert state is not None
    me = state.node.node_id

    def card():
        return real.cluster._computers[me]

    until(qtbot, lambda: me in real.cluster._computers)
    real.cluster._actions.choose(card()._card, "rename")
    answer(real, real.findChildren(Question)[-1], "Study", qtbot)
    until(qtbot, lambda: card().name.whole_text() == "Study")

    real.cluster._actions.choose(card()._card, "limit")
    answer(real, real.findChildren(Question)[-1], "1", qtbot)
    until(qtbot, lambda: card()._card.memory.endswith(("of 1 GB lent", "of 1 GB GPU memory lent")))
    assert card()._meter.limit < 1

    real.cluster._actions.choose(card()._card, "pause")
    until(qtbot, lambda: card().pill.text() == "Paused")
    real.cluster._actions.choose(card()._card, "resume")
    until(qtbot, lambda: card().pill.text() != "Paused")
    real.cluster._actions.choose(card()._card, "limit")
    answer(real, real.findChildren(Question)[-1], "0", qtbot)
    until(qtbot, lambda: not card()._card.memory.endswith("of 1 GB lent"))

    until(qtbot, real.cluster.looking.again.isVisible)  # after ten seconds without another computer
    qtbot.mouseClick(real.cluster.looking.again, LEFT)
    assert real.cluster.looking.title.text() == "Looking for your computers"
    until(
        qtbot, lambda: not real.banner.isVisible()
    )  # one about the limit of before ends by itself


def test_a_computer_joins_by_a_token_and_is_removed(
    real: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    shared_kernels.share_with(tmp_path / "helper")
    folders = Folders.of(tmp_path / "helper", {})
    helper = launch.find_or_start(folders)
    try:
        helper.set_role(RoleRequest(worker=True))
        real.go(real.cluster)
        dialog = real.cluster.open_add_dialog()
        qtbot.mouseClick(dialog.make, LEFT)
        until(qtbot, dialog.token.text)
        helper.join(dialog.token.text().split()[-1])
        dialog.reject()
        name = helper.state().node.node_id
        until(qtbot, lambda: name in real.cluster._computers)
        card = real.cluster._computers[name]
        until(qtbot, lambda: real.cluster._computers[name]._card.removable)

        real.cluster._actions.choose(card._card, "remove")
        qtbot.mouseClick(real.findChildren(Confirmation)[-1].yes, LEFT)

        until(qtbot, lambda: not is_of_this_home(real, name))
        until(qtbot, lambda: not helper.state().node.lent_to)
    finally:
        helper.shutdown()


def test_a_model_is_loaded_measured_explained_and_unloaded(real: MainWindow, qtbot: QtBot) -> None:
    say(real, qtbot, "What is Potluck?")
    real.go(real.cluster)
    model = real.cluster.model
    until(qtbot, lambda: "measured" in model.figures.text())
    assert model.name.whole_text() == "Potluck guide"
    qtbot.mouseClick(model.why, LEFT)
    assert "does it alone" in f"{model.line.text()} {model._explanation.text()}"

    qtbot.mouseClick(model.unload, LEFT)
    until(qtbot, lambda: model.name.whole_text() == "No model loaded")
    real.go(real.models)
    until(qtbot, lambda: real.models.here.cards())
    assert real.library.models is not None
    assert [row.name for row in real.library.models if row.is_guide] == ["Potluck guide"]


def test_programs_and_the_doctor_are_answered(real: MainWindow, qtbot: QtBot) -> None:
    real.go(real.settings)
    real.settings.programs.port.setText(str(free_port()))
    qtbot.mouseClick(real.settings.programs.api, LEFT)
    until(
        qtbot, lambda: real.settings.programs.url.text() and real.settings.programs.url.isVisible()
    )
    with closing(urlopen(f"{real.settings.programs.url.text()}/models", timeout=20)) as answered:
        assert answered.status == 200
    qtbot.mouseClick(real.settings.programs.api, LEFT)
    until(qtbot, lambda: not real.settings.programs.url.isVisible())

    click(real, "settings-doctor", qtbot)
    dialog = real.findChildren(DoctorDialog)[-1]
    until(qtbot, lambda: dialog.findings)
    qtbot.mouseClick(dialog.close_button, LEFT)


def test_a_node_that_is_killed_is_one_calm_line_and_the_chat_goes_on(
    real: MainWindow, folders: Folders, qtbot: QtBot
) -> None:
    say(real, qtbot, "What is Potluck?")
    seen: list[str] = []
    real._backend.connection_changed.connect(lambda _c, _m: seen.append(real.banner.text.text()))
    node = read_node_file(folders)
    assert node is not None
    process = psutil.Process(node.pid)
    for each in (*process.children(recursive=True), process):
        each.kill()

    until(qtbot, lambda: real._backend.live_state is None)
    assert real.banner.isVisible()
    assert real.chat.pill.text() == "Starting"
    say(real, qtbot, "How do I add another computer?")

    assert real._chat.messages.rowCount() == 4
    until(qtbot, lambda: not real.banner.isVisible())
    assert any("stopped in the background" in line for line in seen)


def choose(dialogs: list[QFileDialog], file: Path) -> None:
    """Choose a file in the newest dialog, as its button would."""
    dialogs[-1].fileSelected.emit(str(file))
    dialogs[-1].reject()


def is_of_this_home(window: MainWindow, node_id: str) -> bool:
    state = window._backend.live_state
    return state is None or any(c.node_id == node_id and c.paired for c in state.computers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
