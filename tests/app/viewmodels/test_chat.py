"""The chat: what is asked, what is shown, what is kept."""

import pytest
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.history import History, Message, Stats
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.chat import Chat, fitting

pytestmark = pytest.mark.qt

STATS = Stats(tokens=2, tokens_per_s=9.0, time_to_first_token_s=0.1, prompt_tokens=5)


def answer(backend: ScriptedBackend, *pieces: str, end: ReplyEnd | None = None) -> None:
    reply = backend.replies[-1]
    for piece in pieces:
        reply.text.emit(piece)
    reply.finished.emit(end or ReplyEnd(stats=STATS))


def texts(chat: Chat) -> list[tuple[str, str, str]]:
    return [(m.role, m.text, m.status) for m in chat.messages.messages]


def test_a_message_is_sent_and_its_reply_written_and_kept(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("  What is Potluck? ")
    assert chat.is_busy
    answer(backend, "A cluster", " at home.")

    assert [m.text for m in backend.chats[-1]] == ["What is Potluck?"]
    assert texts(chat)[1] == ("assistant", "A cluster at home.", "done")
    assert not chat.is_busy
    qtbot.waitUntil(lambda: _on_disk(history) == [("What is Potluck?", "A cluster at home.")])


def _on_disk(history: History) -> list[tuple[str, ...]]:
    loaded = [history.load(summary.id) for summary in history.summaries()]
    return [tuple(m.text for m in c.messages) for c in loaded if c is not None]


def test_nothing_is_sent_while_a_reply_comes_or_without_words(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("  \n")
    chat.send("one")
    chat.send("two")

    assert len(backend.chats) == 1


def test_the_next_message_takes_the_conversation_along(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("one")
    answer(backend, "1")
    chat.send("two")

    assert [(m.role, m.text) for m in backend.chats[-1]] == [
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]


def test_stop_keeps_what_came(chat: Chat, backend: ScriptedBackend) -> None:
    chat.send("one")
    backend.replies[-1].text.emit("half")

    chat.stop()

    assert texts(chat)[-1] == ("assistant", "half", "stopped")
    assert not chat.is_busy


def test_a_failed_reply_says_why_and_can_be_tried_again(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("one")
    answer(backend, "ha", end=ReplyEnd(error="Laptop stopped answering."))
    failed = chat.messages.last()
    assert failed is not None
    assert (failed.status, failed.error) == ("failed", "Laptop stopped answering.")

    chat.regenerate()

    assert [m.text for m in backend.chats[-1]] == ["one"]
    assert texts(chat)[-1] == ("assistant", "", "streaming")


def test_another_conversation_stops_the_reply_and_comes_back_whole(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    chat.send("one")
    backend.replies[-1].text.emit("half")
    first = chat.shown_id
    assert first is not None

    chat.new()
    assert texts(chat) == []
    chat.open(first)

    qtbot.waitUntil(lambda: texts(chat)[-1:] == [("assistant", "half", "stopped")])


def test_renaming_lasts(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("one")
    answer(backend, "1")
    shown = chat.shown_id
    assert shown is not None

    chat.rename(shown, " A better\ntitle ")
    qtbot.waitUntil(lambda: [s.title for s in history.summaries()] == ["A better title"])
    chat.new()
    chat.rename(shown, "The best title")

    qtbot.waitUntil(lambda: [s.title for s in history.summaries()] == ["The best title"])
    qtbot.waitUntil(lambda: chat.list.data(chat.list.index(1)) == "The best title")


def test_renaming_does_not_make_a_chat_newer(
    backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    clock = iter(range(100, 10_000))
    chat = Chat(backend, history, now=lambda: float(next(clock)))
    chat.send("one")
    answer(backend, "1")
    qtbot.waitUntil(lambda: _on_disk(history) == [("one", "1")])
    (before,) = history.summaries()

    chat.rename(before.id, "Better")
    chat.close()

    (after,) = history.summaries()
    assert (after.title, after.updated) == ("Better", before.updated)


def test_a_new_chat_is_not_replaced_by_one_that_was_still_being_read(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    chat.send("one")
    answer(backend, "1")
    first = chat.shown_id
    assert first is not None
    chat.new()

    chat.open(first)
    chat.new()
    read: list[None] = []
    chat._disk.run(lambda: None, read.append)  # after the one before, in the same thread
    qtbot.waitUntil(lambda: read == [None])

    assert chat.shown_id is None


def test_deleting_can_be_undone(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("one")
    answer(backend, "1")
    shown = chat.shown_id
    assert shown is not None

    with qtbot.waitSignal(chat.deleted):
        chat.delete(shown)
    assert history.summaries() == []
    assert chat.list.rowCount() == 0
    chat.undelete()

    qtbot.waitUntil(lambda: _on_disk(history) == [("one", "1")])
    assert chat.list.rowCount() == 2


def test_closing_writes_what_is_still_to_be_written(
    backend: ScriptedBackend, history: History
) -> None:
    chat = Chat(backend, history)
    chat.send("one")
    backend.replies[-1].text.emit("half")

    chat.close()

    assert _on_disk(history) == [("one", "half")]


def test_a_disk_that_refuses_is_told_and_the_chat_goes_on(
    chat: Chat,
    backend: ScriptedBackend,
    history: History,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_conversation: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(history, "save", refuse)

    with qtbot.waitSignal(chat.trouble) as trouble:
        chat.send("one")
    answer(backend, "1")

    assert trouble.args is not None
    assert "No space left" in trouble.args[0]
    assert texts(chat)[-1] == ("assistant", "1", "done")


def user(text: str) -> Message:
    return Message(role="user", text=text)


def reply(text: str) -> Message:
    return Message(role="assistant", text=text)


def test_old_messages_are_left_out_where_the_context_is_full() -> None:
    talk = [user("a" * 600), reply("b" * 600), user("c" * 300), reply("d" * 300), user("now")]

    kept = fitting(talk, context=300)

    assert [m.text[0] for m in kept] == ["c", "d", "n"]


def test_what_is_asked_now_is_always_sent() -> None:
    assert fitting([user("a"), reply("b"), user("x" * 10_000)], context=100)[-1].text[0] == "x"


def test_the_first_message_that_is_sent_is_the_persons() -> None:
    talk = [user("a" * 700), reply("b" * 60), user("now")]

    assert [m.role for m in fitting(talk, context=300)] == ["user"]


def test_a_question_whose_reply_failed_is_not_sent_again() -> None:
    talk = [user("lost"), reply(""), user("now")]

    assert [m.text for m in fitting(talk, context=0)] == ["now"]


def test_thoughts_are_not_said_again() -> None:
    talk = [user("a"), reply("<think>hm</think>b"), user("<think> is a tag?")]

    assert [m.text for m in fitting(talk, context=0)] == ["a", "b", "<think> is a tag?"]


def test_the_context_is_the_loaded_models(chat: Chat, backend: ScriptedBackend) -> None:
    backend.say(home(model=running_model(context=64)))
    chat.send("a" * 400)
    answer(backend, "b")
    chat.send("now")

    assert [m.text for m in backend.chats[-1]] == ["now"]
