"""The Chat page."""

import pytest
from chat_page import last, write
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QTextDocument
from PySide6.QtWidgets import QPushButton, QToolButton
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.chats.values import Message, Stats
from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import Code
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.conversation.chat import EXAMPLES
from potluck_app.views.conversation.message import ReplyMessage
from potluck_app.views.conversation.user_message import UserMessage
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.code import CodeView
from potluck_app.views.widgets.controls import IconButton
from potluck_app.views.widgets.dialogs import Confirmation
from potluck_app.views.widgets.prose import ProseView, open_in_browser

pytestmark = pytest.mark.qt

REPLY = "Use this:\n\n```python\nprint('hi')\n```\n\nThat is **all**.\n"
STATS = Stats(tokens=118, tokens_per_s=7.94, time_to_first_token_s=1.21, prompt_tokens=500)


def shown_text(view: ReplyMessage) -> str:
    parts = view.findChildren(ProseView) + view.findChildren(CodeView)
    visible = [part for part in parts if part.isVisible()]
    visible.sort(key=lambda part: part.y())
    return "\n".join(
        part.text.toPlainText() if isinstance(part, CodeView) else part.toPlainText()
        for part in visible
    )


def test_a_question_is_asked_and_the_reply_streams_below_it(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model()))
    write(window, qtbot, "How?")
    reply = backend.replies[-1]

    for begin in range(0, len(REPLY), 3):
        reply.text.emit(REPLY[begin : begin + 3])
    reply.finished.emit(ReplyEnd(stats=STATS))

    view = last(window)
    qtbot.waitUntil(lambda: shown_text(view) == "Use this:\nprint('hi')\nThat is all.")
    assert view.stats.text() == "7.9 tokens/s · 118 tokens · 1.2 s to first token"
    assert window.chat.composer.text.toPlainText() == ""


def test_only_the_last_block_is_drawn_again(
    chat: Chat, qtbot: QtBot, theme: Theme, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    original = QTextDocument.setMarkdown

    def count(self: QTextDocument, text: str, *rest: object) -> None:
        drawn.append(text)
        original(self, text, *rest)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(QTextDocument, "setMarkdown", count)
    view = ReplyMessage(theme, Message(role="assistant", text=""), chat)
    qtbot.addWidget(view)
    long = "x" * 5000 + "\n\n"
    view.show_message(Message(role="assistant", text=long, status="streaming"), is_last=True)
    drawn.clear()

    for count_ in range(1, 20):
        text = long + "word " * count_
        view.show_message(Message(role="assistant", text=text, status="streaming"), is_last=True)

    assert max(len(text) for text in drawn) < 200


def test_an_empty_chat_offers_examples_about_potluck(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    example = window.findChild(QPushButton, "example-1")
    assert example is not None

    qtbot.mouseClick(example, Qt.MouseButton.LeftButton)

    assert backend.chats[-1][-1].text == EXAMPLES[1]
    assert window.chat.transcript.isVisible()


def test_a_reply_that_waits_for_the_model_says_what_happens(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "How?")
    line = last(window).waiting.line

    backend.say(home(model=running_model(state="loading", plan=None, progress=0.5)))

    qtbot.waitUntil(line.isVisible)
    assert line.text() == "Loading the model · 50 %"
    backend.replies[-1].text.emit("So")
    assert not line.isVisible()


def test_a_failed_reply_can_be_tried_again(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "How?")
    backend.replies[-1].finished.emit(ReplyEnd(error="Mac stopped answering."))
    view = last(window)
    assert view.failure.text.text() == "Mac stopped answering."

    qtbot.mouseClick(view.failure.retry, Qt.MouseButton.LeftButton)

    assert len(backend.chats) == 2
    assert last(window).message.status == "streaming"


def test_where_the_model_does_not_fit_another_one_can_be_chosen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "How?")
    backend.replies[-1].finished.emit(ReplyEnd(error="Mac stopped answering.", code="peer_lost"))
    assert not last(window).failure.models.isVisible()
    qtbot.mouseClick(last(window).failure.retry, Qt.MouseButton.LeftButton)
    error = ReplyEnd(error="Big needs 4 GB more memory.", code="not_enough_memory")
    backend.replies[-1].finished.emit(error)

    qtbot.mouseClick(last(window).failure.models, Qt.MouseButton.LeftButton)

    assert window.models.isVisible()


def test_the_reply_and_its_code_can_be_copied(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "How?")
    backend.replies[-1].text.emit(REPLY)
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    view = last(window)
    code = view.findChild(CodeView)
    assert code is not None

    qtbot.mouseClick(code.copy, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "print('hi')"
    qtbot.mouseClick(view.copy, Qt.MouseButton.LeftButton)

    assert QGuiApplication.clipboard().text() == REPLY
    assert view.copy.text() == "Copied"


def test_an_own_message_can_be_copied_whole(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    question = "Long words. " * 400  # which is folded
    write(window, qtbot, question)
    (own,) = window.findChildren(UserMessage)

    qtbot.mouseClick(own.copy, Qt.MouseButton.LeftButton)

    assert QGuiApplication.clipboard().text() == question.strip()


def test_a_button_confirms_for_a_moment(qtbot: QtBot, theme: Theme) -> None:
    button = IconButton(theme, "copy", "Copy the reply", "copy", text="Copy", confirm_ms=1)
    qtbot.addWidget(button)

    button.confirm("Copied")
    confirmed = button.text()

    qtbot.waitUntil(lambda: button.text() == "Copy")
    assert confirmed == "Copied"


def test_thoughts_are_folded_away_and_not_copied(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "How?")
    view = last(window)
    for piece in ("<th", "ink>Let me ", "see."):
        backend.replies[-1].text.emit(piece)
    qtbot.waitUntil(view.thinking.isVisible)
    assert view.thinking.toggle.text() == "Thinking…"
    assert not view.thinking.text.isVisible()

    backend.replies[-1].text.emit("</think>\n\nSo.")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    qtbot.waitUntil(lambda: shown_text(view) == "So.")
    qtbot.mouseClick(view.thinking.toggle, Qt.MouseButton.LeftButton)
    assert view.thinking.text.isVisible()
    assert view.thinking.text.text() == "Let me see."
    qtbot.mouseClick(view.copy, Qt.MouseButton.LeftButton)

    assert QGuiApplication.clipboard().text() == "So."


def test_regenerate_is_offered_on_the_last_reply_only(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    for question in ("one", "two"):
        write(window, qtbot, question)
        backend.replies[-1].text.emit("so")
        backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    first, last = window.chat.transcript.findChildren(ReplyMessage)
    qtbot.waitUntil(last.regenerate.isVisible)
    assert not first.regenerate.isVisible()

    qtbot.mouseClick(last.regenerate, Qt.MouseButton.LeftButton)

    assert [m.text for m in backend.chats[-1]] == ["one", "so", "two"]


def test_nothing_in_a_reply_is_html_or_fetched(qtbot: QtBot, theme: Theme) -> None:
    opened: list[QUrl] = []
    view = ProseView(theme, opened.append)
    qtbot.addWidget(view)

    view.show_markdown("`List<int>` a List<int> x <script>y</script> ![p](http://10.0.0.1/x.png)")

    assert "List<int> x <script>y</script>" in view.toPlainText()
    assert view.loadResource(2, QUrl("http://10.0.0.1/x.png")) is None
    assert opened == []


def test_links_open_only_the_web(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))

    for url in ("https://a.example", "http://b.example", "file:///etc/passwd", "javascript:x"):
        open_in_browser(QUrl(url))

    assert opened == ["https://a.example", "http://b.example"]


def test_a_page_that_is_not_encrypted_is_opened_after_a_question(
    theme: Theme, qtbot: QtBot
) -> None:
    opened: list[str] = []
    view = ProseView(theme, lambda url: opened.append(url.toString()))
    qtbot.addWidget(view)
    view.show_markdown("See [this](http://b.example/x) and [that](https://a.example).")
    view.show()

    view.anchorClicked.emit(QUrl("https://a.example"))
    view.anchorClicked.emit(QUrl("http://b.example/x"))
    assert opened == ["https://a.example"]
    question = view.findChild(Confirmation)
    assert question is not None
    question.accept()
    assert opened[1:] == ["http://b.example/x"]

    view.highlighted.emit(QUrl("https://a.example"))
    assert "a.example" in view.toolTip()


def test_the_page_stays_at_its_end_only_while_the_person_is_there(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    bar = window.chat.transcript.verticalScrollBar()
    write(window, qtbot, "How?")
    reply = backend.replies[-1]
    reply.text.emit("line\n\n" * 60)
    qtbot.waitUntil(lambda: bar.maximum() > 500 and bar.value() == bar.maximum())

    bar.setValue(100)
    before = bar.maximum()
    reply.text.emit("more\n\n" * 20)
    qtbot.waitUntil(lambda: bar.maximum() > before)

    assert bar.value() == 100


def test_the_context_fills_and_says_so(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model(context=640)))
    write(window, qtbot, "How?")
    backend.replies[-1].text.emit("so")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))

    assert window.chat.top.context_text.text() == "Context 618 / 640"
    assert window.chat.top.context_meter.fraction == pytest.approx(618 / 640)


def test_the_top_says_which_model_answers_and_where(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    picker = window.findChild(QToolButton, "chat-model")
    assert picker is not None
    assert picker.text() == "Potluck guide · on this computer"

    backend.say(home(model=running_model()))

    assert picker.text() == "Qwen3 8B · here and there"
    assert window.chat.pill.text() == "Ready"
    assert window.chat.composer.text.placeholderText() == "Message Qwen3 8B"


def test_the_top_does_not_say_where_a_model_will_run_that_is_not_loaded(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model()))
    backend.lose()

    picker = window.findChild(QToolButton, "chat-model")
    assert picker is not None
    assert picker.text() == "Qwen3 8B"
    assert picker.accessibleName() == "Model: Qwen3 8B. Choose another"


def test_a_chat_of_the_list_is_opened_renamed_and_deleted(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    write(window, qtbot, "One?")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    qtbot.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert not window.chat.transcript.isVisible()
    sidebar = window.chat.sidebar
    index = next(
        sidebar.list.model().index(row, 0)
        for row in range(sidebar.list.model().rowCount())
        if sidebar.list.model().index(row, 0).data(ChatListRole.ID)
    )

    sidebar.list.clicked.emit(index)
    qtbot.waitUntil(window.chat.transcript.isVisible)
    assert sidebar.list.currentIndex() == index
    sidebar.menu_for(index).actions()[-1].trigger()
    qtbot.waitUntil(lambda: sidebar.list.model().rowCount() == 0)
    undo = window.findChild(QPushButton, "chat-undo")
    assert undo is not None
    qtbot.mouseClick(undo, Qt.MouseButton.LeftButton)

    assert sidebar.list.model().rowCount() == 2


def test_a_narrow_window_gives_the_chat_the_room(window: MainWindow, qtbot: QtBot) -> None:
    window.resize(1180, 760)
    qtbot.waitUntil(window.chat.sidebar.isVisible)

    window.resize(880, 600)
    qtbot.waitUntil(lambda: not window.chat.sidebar.isVisible())
    qtbot.waitUntil(window.chat.show_list.isVisible)
    qtbot.mouseClick(window.chat.show_list, Qt.MouseButton.LeftButton)
    assert window.chat.sidebar.isVisible()
    qtbot.mouseClick(window.chat.sidebar.new, Qt.MouseButton.LeftButton)
    assert not window.chat.sidebar.isVisible()
    qtbot.keyClick(window, Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    assert window.chat.sidebar.isVisible()

    window.resize(1180, 760)

    qtbot.waitUntil(lambda: not window.chat.show_list.isVisible())
    assert window.chat.sidebar.isVisible()


def test_a_long_line_of_code_has_one_bar(qtbot: QtBot, theme: Theme) -> None:
    view = CodeView(theme)
    qtbot.addWidget(view)
    view.resize(200, 100)
    view.show()

    view.show_code(Code("py", "x = " + "1 + " * 200 + "\ny = 2", closed=True))

    qtbot.waitUntil(view.text.horizontalScrollBar().isVisible)
    assert not view.text.verticalScrollBar().isVisible()


def test_a_reply_without_a_word_says_what_it_waits_for(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model()))
    write(window, qtbot, "How?")
    waiting = last(window).waiting
    assert waiting.line.text() == "Reading your message…"

    backend.replies[-1].waits.emit("waiting, place 2, about 40 s")
    assert waiting.line.text() == "Waits for 2 answers before it · about 40 s"

    backend.replies[-1].waits.emit("reading, 30 of 40 tokens")
    backend.say(home(model=running_model(answering=1)))  # which says nothing new of this
    assert waiting.line.text() == "Reading your message · 75 %"
    assert waiting.meter.isVisible()

    first = window.chat._chat.shown_id
    assert first is not None
    window.chat._chat.new()
    window.chat._chat.open(first)  # it is still known there
    assert last(window).waiting.line.text() == "Reading your message · 75 %"

    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    write(window, qtbot, "And then?")
    assert last(window).waiting.line.text() == "Reading your message…"
