"""What tests do on the chat page: ask, click, look at the newest messages."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.values import Stats
from potluck_app.streams import ReplyEnd
from potluck_app.views.conversation.message import ReplyMessage
from potluck_app.views.conversation.user_message import UserMessage
from potluck_app.views.main_window import MainWindow

STATS = Stats(tokens=20, tokens_per_s=8.0, time_to_first_token_s=1.2, prompt_tokens=600)


def ask(window: MainWindow, backend: ScriptedBackend, text: str, reply: str = "so") -> None:
    window.chat.composer.sent.emit(text, ())
    backend.replies[-1].text.emit(reply)
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))


def write(window: MainWindow, qtbot: QtBot, text: str) -> None:
    """Type a question and send it, as a person does."""
    qtbot.keyClicks(window.chat.composer.text, text)
    qtbot.keyClick(window.chat.composer.text, Qt.Key.Key_Return)


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


def pages_of(window: MainWindow) -> tuple[QWidget, ...]:
    """All pages, also those that were not opened yet."""
    return window.chat, window.cluster, window.models, window.settings
