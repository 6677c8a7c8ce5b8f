"""The chats: what is asked, what is shown, what is kept."""

from pathlib import Path

import pytest
from chat_talk import STATS, answer, ask, on_disk, settled, shown, texts, words
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.chats.history import History
from potluck_app.chats.values import Attachment, Draft, Settings
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole

pytestmark = pytest.mark.qt


def test_a_message_is_sent_and_its_reply_written_and_kept(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("  What is Potluck? ")
    assert chat.is_busy
    answer(backend, "A cluster", " at home.")

    assert [m.text for m in backend.chats[-1]] == ["What is Potluck?"]
    assert texts(chat)[1] == ("assistant", "A cluster at home.", "done")
    assert not chat.is_busy
    settled(chat, qtbot)
    assert on_disk(history) == [("What is Potluck?", "A cluster at home.")]


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
    ask(chat, backend, "one", "1")
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


def test_a_reply_is_on_disk_while_it_is_written(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("one")
    for piece in ("half ", "of ", "it"):
        backend.replies[-1].text.emit(piece)

    qtbot.waitUntil(lambda: on_disk(history) == [("one", "half of it")])


def test_a_failed_reply_says_why_and_is_written_in_the_same_place(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("one")
    answer(backend, end=ReplyEnd(error="Laptop stopped answering.", code="peer_lost"))
    failed = chat.messages.last()
    assert failed is not None
    assert (failed.status, failed.error, failed.code) == (
        "failed",
        "Laptop stopped answering.",
        "peer_lost",
    )

    chat.regenerate()

    assert [m.text for m in backend.chats[-1]] == ["one"]
    assert texts(chat)[-1] == ("assistant", "", "streaming")
    assert chat.messages.versions(1) == (0, 1)


# --- versions


def test_another_reply_is_a_version_beside_the_first(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    ask(chat, backend, "one", "first")
    chat.regenerate()
    answer(backend, "second")
    assert words(chat) == ["one", "second"]
    assert chat.messages.versions(1) == (1, 2)

    chat.choose(chat.messages.at(1).id, -1)

    assert words(chat) == ["one", "first"]
    settled(chat, qtbot)
    assert on_disk(history) == [("one", "first", "second")]
    loaded = history.load(shown(chat))
    assert loaded is not None
    assert loaded.leaf == chat.messages.at(1).id


def test_an_edited_message_is_asked_as_a_version_and_the_other_is_kept_with_its_replies(
    chat: Chat, backend: ScriptedBackend
) -> None:
    file = Attachment(name="a.py", text="1")
    ask(chat, backend, "one", "1")
    chat.send("two", [file])
    answer(backend, "2")

    chat.edit(chat.messages.at(2).id, " two and a half ")
    answer(backend, "2.5")

    assert words(chat) == ["one", "1", "two and a half", "2.5"]
    assert chat.messages.at(2).attachments == (file,)
    assert [m.text.split("\n")[0] for m in backend.chats[-1]] == ["one", "1", "two and a half"]
    chat.choose(chat.messages.at(2).id, -1)
    assert words(chat) == ["one", "1", "two", "2"]


def test_a_reply_goes_on_while_another_version_is_shown(
    chat: Chat, backend: ScriptedBackend
) -> None:
    ask(chat, backend, "one", "first")
    chat.regenerate()
    chat.choose(chat.messages.at(1).id, -1)
    answer(backend, "second")
    assert words(chat) == ["one", "first"]

    chat.choose(chat.messages.at(1).id, 1)

    assert texts(chat)[1] == ("assistant", "second", "done")


# --- several conversations


def test_replies_go_on_in_conversations_that_are_not_shown(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    chat.send("one")
    first, reply_one = shown(chat), backend.replies[-1]
    reply_one.text.emit("ha")
    chat.new()
    assert not chat.is_busy
    chat.send("two")
    second = shown(chat)
    assert chat.list.index_of(first).data(ChatListRole.BUSY)

    reply_one.text.emit("lf")
    assert words(chat) == ["two", ""]
    chat.open(first)
    assert texts(chat) == [("user", "one", "done"), ("assistant", "half", "streaming")]
    assert chat.is_busy
    answer(backend, "2")
    reply_one.finished.emit(ReplyEnd(stats=STATS))
    assert not chat.is_busy

    chat.open(second)
    qtbot.waitUntil(lambda: words(chat) == ["two", "2"])


def test_a_reply_that_ends_unseen_is_there_when_its_conversation_is_opened(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    chat.send("one")
    first = shown(chat)
    chat.new()
    answer(backend, "1")

    chat.open(first)

    qtbot.waitUntil(lambda: texts(chat)[1:] == [("assistant", "1", "done")])
    last = chat.messages.last()
    assert last is not None
    assert last.stats == STATS


def test_a_new_chat_is_not_replaced_by_one_that_was_still_being_read(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(chat, backend, "one", "1")
    first = shown(chat)
    chat.new()

    chat.open(first)
    chat.new()
    settled(chat, qtbot)

    assert chat.shown_id is None


def test_renaming_and_pinning_last_and_make_no_chat_newer(
    backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    clock = iter(range(100, 10_000))
    chat = Chat(backend, history, now=lambda: float(next(clock)))
    ask(chat, backend, "one", "1")
    settled(chat, qtbot)
    (before,) = history.summaries()

    chat.rename(before.id, " A better\ntitle ")
    chat.pin(before.id, True)
    settled(chat, qtbot)
    (after,) = history.summaries()
    assert (after.title, after.pinned, after.updated) == ("A better title", True, before.updated)
    assert chat.title == "A better title"

    chat.new()
    chat.rename(before.id, "The best title")
    chat.pin(before.id, False)
    settled(chat, qtbot)

    (after,) = history.summaries()
    assert (after.title, after.pinned, after.updated) == ("The best title", False, before.updated)
    assert chat.list.data(chat.list.index(1)) == "The best title"
    chat.close()


def test_deleting_can_be_undone_until_it_is_forgotten(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    told: list[str] = []
    chat.deleted.connect(told.append)
    for question in ("one", "two"):
        chat.new()
        chat.send(question)
        chat.delete(shown(chat))  # while its reply comes
    settled(chat, qtbot)
    assert (history.summaries(), chat.list.rowCount()) == ([], 0)

    chat.undelete()
    settled(chat, qtbot)
    assert sorted(on_disk(history)) == [("one", ""), ("two", "")]
    assert chat.list.rowCount() == 3

    assert told == ["one", "2 chats"]
    deleted = str(chat.list.index(1).data(ChatListRole.ID))
    chat.delete(deleted)
    chat.forget_deleted()
    chat.undelete()
    settled(chat, qtbot)
    assert history.load(deleted) is None


# --- settings, drafts, presets


def test_a_conversation_is_answered_by_its_settings_and_keeps_them(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    chosen = Settings(system="Be brief.", temperature=0.1)
    chat.set_settings(chosen)
    ask(chat, backend, "one", "1")
    first = shown(chat)
    chat.new()
    assert chat.settings == Settings()

    chat.open(first)
    qtbot.waitUntil(lambda: chat.shown_id == first)
    chat.send("two")

    assert backend.settings == [chosen, chosen]


def test_the_context_is_the_loaded_models_or_what_was_chosen_below_it(
    chat: Chat, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model(context=64)))
    ask(chat, backend, "a" * 400, "b")
    assert chat.context() == 64
    chat.send("now")
    assert [m.text for m in backend.chats[-1]] == ["now"]

    chat.set_settings(Settings(context=32))
    assert chat.context() == 32
    chat.set_settings(Settings(context=128))
    assert chat.context() == 64


def test_each_chat_has_its_draft_also_after_a_restart(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot, tmp_path: Path
) -> None:
    draft = Draft(text="half a", attachments=(Attachment(name="a", text="b"),))
    ask(chat, backend, "one", "1")
    first = shown(chat)
    chat.set_draft(draft)
    chat.new()
    assert chat.draft == Draft()
    chat.set_draft(Draft(text="new"))
    chat.close()

    again = Chat(backend, History(tmp_path / "chats.sqlite"))
    again.start()
    qtbot.waitUntil(lambda: again.draft == Draft(text="new"))
    again.open(first)
    qtbot.waitUntil(lambda: again.draft == draft)
    again.send("whole")

    assert again.draft == Draft()
    again.close()


def test_presets_are_kept_by_name(chat: Chat, history: History, qtbot: QtBot) -> None:
    chat.set_settings(Settings(temperature=0.1))
    chat.presets.save("Exact", chat.settings)
    chat.set_settings(Settings(temperature=0.2))
    chat.presets.save("Exact", chat.settings)
    chat.presets.save("also", chat.settings)
    assert [p.name for p in chat.presets.all] == ["also", "Exact"]
    chat.presets.delete("also")
    settled(chat, qtbot)

    assert [(p.name, p.settings.temperature) for p in history.presets()] == [("Exact", 0.2)]
