"""What tests of the chats say and ask, without a window."""

from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.history import History
from potluck_app.chats.values import Stats
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.chat import Chat

STATS = Stats(tokens=2, tokens_per_s=9.0, time_to_first_token_s=0.1, prompt_tokens=5)


def answer(backend: ScriptedBackend, *pieces: str, end: ReplyEnd | None = None) -> None:
    reply = backend.replies[-1]
    for piece in pieces:
        reply.text.emit(piece)
    reply.finished.emit(end or ReplyEnd(stats=STATS))


def ask(chat: Chat, backend: ScriptedBackend, question: str, reply: str) -> None:
    chat.send(question)
    answer(backend, reply)


def texts(chat: Chat) -> list[tuple[str, str, str]]:
    return [(m.role, m.text, m.status) for m in chat.messages.messages]


def words(chat: Chat) -> list[str]:
    return [m.text for m in chat.messages.messages]


def settled(chat: Chat, qtbot: QtBot) -> None:
    """Wait until what was asked of the disk is done."""
    done: list[None] = []
    chat._keeper.write(lambda _history: None, lambda: done.append(None))
    qtbot.waitUntil(lambda: bool(done))


def on_disk(history: History) -> list[tuple[str, ...]]:
    loaded = [history.load(summary.id) for summary in history.summaries()]
    return [tuple(m.text for m in c.messages) for c in loaded if c is not None]


def shown(chat: Chat) -> str:
    assert chat.shown_id is not None
    return chat.shown_id
