"""A reply that is not whole goes on where it ended."""

from pathlib import Path

import pytest
from chat_talk import STATS, answer, ask, on_disk, settled, texts
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.history import History
from potluck_app.chats.values import Conversation, Message
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.prompt import can_go_on, fitting

pytestmark = pytest.mark.qt

CUT = ReplyEnd(stats=STATS, cut=True)


def last(chat: Chat) -> Message:
    message = chat.messages.last()
    assert message is not None
    return message


def go_on(chat: Chat) -> None:
    chat.go_on(last(chat).id)


def test_a_cut_reply_goes_on_in_its_place_with_the_figures_of_both_parts(
    chat: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    chat.send("Count.")
    answer(backend, "one, two, ", end=CUT)
    assert last(chat).cut

    go_on(chat)

    asked = backend.chats[-1]
    assert [(m.role, m.text) for m in asked] == [("user", "Count."), ("assistant", "one, two,")]
    assert backend.replies[-1]._body["continue_final_message"] is True
    answer(backend, " three.")
    assert texts(chat)[-1] == ("assistant", "one, two, three.", "done")
    assert not last(chat).cut
    stats = last(chat).stats
    assert stats is not None
    assert (stats.tokens, stats.prompt_tokens) == (4, 3)  # the second prompt had the first part
    settled(chat, qtbot)
    assert on_disk(history) == [("Count.", "one, two, three.")]


def test_thoughts_of_the_rest_do_not_stand_in_the_middle_of_the_answer(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("Count.")
    answer(backend, "<think>\nHm.\n</think>\n\none,", end=CUT)
    go_on(chat)
    stream = backend.replies[-1].stream
    for delta in (b'{"reasoning_content":"What now?"}', b'{"content":" two."}'):
        stream.received.emit(b'{"choices":[{"index":0,"delta":%s,"token_ids":[1]}]}' % delta)
    stream.received.emit(b"[DONE]")
    stream.ended.emit(None)

    assert last(chat).text == "<think>\nHm.\n</think>\n\none, two."


def test_a_stopped_and_a_failed_reply_go_on(chat: Chat, backend: ScriptedBackend) -> None:
    chat.send("Count.")
    backend.replies[-1].text.emit("one,")
    chat.stop()
    go_on(chat)
    answer(backend, " two", end=ReplyEnd(error="Laptop stopped answering.", code="peer_lost"))
    assert last(chat).status == "failed"

    go_on(chat)
    answer(backend, ".")

    assert texts(chat)[-1] == ("assistant", "one, two.", "done")
    assert last(chat).error is None


def test_one_that_fails_before_more_of_it_came_is_what_it_was_and_may_go_on_again(
    chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("Count.")
    answer(backend, "one,", end=CUT)
    go_on(chat)
    answer(backend, end=ReplyEnd(error="The model is not here any more.", code="not_found"))

    assert texts(chat)[-1] == ("assistant", "one,", "failed")
    assert last(chat).stats == STATS
    assert can_go_on(last(chat))


def test_what_is_whole_or_has_no_answer_yet_does_not_go_on(
    chat: Chat, backend: ScriptedBackend
) -> None:
    ask(chat, backend, "one", "1")
    go_on(chat)
    assert len(backend.chats) == 1

    chat.send("two")
    backend.replies[-1].text.emit("<think>hm, ")
    chat.stop()
    go_on(chat)
    assert len(backend.chats) == 2


def test_a_cut_reply_is_one_after_a_restart(tmp_path: Path) -> None:
    history = History(tmp_path / "chats.sqlite")
    history.open()
    cut = Message(id="m", role="assistant", text="one,", cut=True)
    history.save(Conversation(id="c", title="", updated=1.0, messages=(cut,)))

    read = history.load("c")

    assert read is not None
    assert read.messages[0].cut


def test_the_question_stays_with_a_long_reply_that_goes_on() -> None:
    messages = [
        Message(role="user", text="Old?"),
        Message(role="assistant", text="Old."),
        Message(role="user", text="Write."),
        Message(role="assistant", text="word " * 2000),
    ]

    assert [m.text[:6] for m in fitting(messages, 512)] == ["Write.", "word w"]
