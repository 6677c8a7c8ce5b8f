"""The page of messages: what is built, what is in view."""

import itertools

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Conversation, Message
from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.conversation.message import ReplyMessage
from potluck_app.views.conversation.transcript import Transcript
from potluck_app.views.conversation.user_message import UserMessage
from potluck_app.views.widgets.prose import ProseView

pytestmark = pytest.mark.qt

LONG = "A paragraph of some length that takes more than a line in the page of messages. " * 4


def talk(count: int) -> tuple[Message, ...]:
    """Questions and replies of several heights, one below the other."""
    return tuple(
        Message(
            id=str(n),
            parent=str(n - 1) if n else None,
            role="assistant" if n % 2 else "user",
            text=f"reply {n}\n\n{LONG * (n % 5)}" if n % 2 else f"question {n}",
        )
        for n in range(count)
    )


def show(chat: Chat, count: int) -> None:
    head = Conversation(id="c", title="t", updated=1.0, messages=talk(count))
    chat._show(chat._opened(head))


@pytest.fixture
def transcript(theme: Theme, chat: Chat, qtbot: QtBot) -> Transcript:
    made = Transcript(theme, chat)
    qtbot.addWidget(made)
    made.resize(800, 600)
    made.show()
    return made


def in_view(transcript: Transcript) -> list[str]:
    """The beginnings of the messages that can be seen, from top to bottom."""
    top = transcript.verticalScrollBar().value()
    bottom = top + transcript.viewport().height()
    views = sorted(transcript._views, key=lambda view: view.y())
    seen = [view for view in views if view.y() < bottom and view.y() + view.height() > top]
    return [" ".join(view.message.text.split()[:2]) for view in seen]


def test_a_long_conversation_is_built_only_near_its_end(transcript: Transcript, chat: Chat) -> None:
    show(chat, 1000)

    first, stop = transcript.built()
    assert stop == 1000
    assert stop - first < 30
    assert in_view(transcript)[-1] == "reply 999"


def test_every_message_comes_into_view_once_in_order(transcript: Transcript, chat: Chat) -> None:
    show(chat, 60)
    bar = transcript.verticalScrollBar()
    bar.setValue(0)
    seen: list[str] = []

    while True:
        seen += [text for text in in_view(transcript) if text not in seen]
        if bar.value() == bar.maximum():
            break
        bar.setValue(bar.value() + 300)

    wanted = [("reply" if n % 2 else "question") + f" {n}" for n in range(60)]
    assert seen == wanted
    assert transcript.built()[0] > 0  # what is far away was dropped


def test_messages_never_lie_on_each_other(transcript: Transcript, chat: Chat, qtbot: QtBot) -> None:
    show(chat, 200)
    bar = transcript.verticalScrollBar()

    for place in (0, bar.maximum() // 2, bar.maximum() // 3):
        bar.setValue(place)
        views = sorted(transcript._views, key=lambda view: view.y())
        gaps = {b.y() - a.y() - a.height() for a, b in itertools.pairwise(views)}
        assert gaps == {20}


def test_what_is_in_view_stays_there_when_heights_above_become_known(
    transcript: Transcript, chat: Chat
) -> None:
    show(chat, 400)
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    before = in_view(transcript)[1]
    view = next(v for v in transcript._views if " ".join(v.message.text.split()[:2]) == before)
    place = view.y() - bar.value()

    bar.setValue(bar.value() - 10)  # upwards, where the heights are guesses

    assert abs(view.y() - bar.value() - (place + 10)) <= 1


def test_a_message_is_revealed_with_its_words_marked(transcript: Transcript, chat: Chat) -> None:
    show(chat, 500)

    transcript.reveal(101, "paragraph")

    assert "reply 101" in in_view(transcript)
    view = transcript._views[101 - transcript.built()[0]]
    assert isinstance(view, ReplyMessage)
    marked = [s.cursor.selectedText() for block in view._blocks for s in block.extraSelections()]  # pyright: ignore[reportAttributeAccessIssue]
    assert set(marked) == {"paragraph"}


def test_a_word_in_an_own_message_is_marked(transcript: Transcript, chat: Chat) -> None:
    show(chat, 50)

    transcript.reveal(20, "question")

    view = transcript._views[20 - transcript.built()[0]]
    assert isinstance(view, UserMessage)
    marked = [s.cursor.selectedText() for s in view.text.extraSelections()]  # pyright: ignore[reportAttributeAccessIssue]
    assert marked == ["question"]


def test_another_version_keeps_the_messages_before_it(
    transcript: Transcript, chat: Chat, backend: ScriptedBackend
) -> None:
    chat.send("one")
    backend.replies[-1].text.emit("first")
    backend.replies[-1].finished.emit(ReplyEnd())
    question = transcript._views[0]

    chat.regenerate()
    backend.replies[-1].text.emit("second")

    assert transcript._views[0] is question
    assert in_view(transcript) == ["one", "second"]


def test_a_narrow_page_wraps_and_nothing_is_cut(
    transcript: Transcript, chat: Chat, qtbot: QtBot
) -> None:
    show(chat, 12)
    wide = transcript.verticalScrollBar().maximum()

    transcript.resize(360, 600)

    qtbot.waitUntil(lambda: transcript.verticalScrollBar().maximum() > wide)
    assert all(view.width() == transcript.width() - 48 for view in transcript._views)
    for view in transcript._views:
        layout = view.layout()
        assert layout is not None
        assert layout.totalMinimumHeightForWidth(view.width()) <= view.height()


def test_another_conversation_begins_at_its_end(transcript: Transcript, chat: Chat) -> None:
    show(chat, 100)
    transcript.verticalScrollBar().setValue(0)

    chat.messages.reset(Tree(talk(40)))

    assert in_view(transcript)[-1] == "reply 39"


def say(chat: Chat, *texts: str) -> None:
    """Show questions and replies with these texts, in turn."""
    messages = tuple(
        Message(
            id=str(n),
            parent=str(n - 1) if n else None,
            role="assistant" if n % 2 else "user",
            text=text,
        )
        for n, text in enumerate(texts)
    )
    chat._show(chat._opened(Conversation(id="x", title="t", updated=1.0, messages=messages)))


def words(reply: ReplyMessage) -> list[str]:
    return [
        block.toPlainText() if isinstance(block, ProseView) else block.text.toPlainText()
        for block in reply._blocks
    ]


def test_messages_near_the_view_are_built_when_there_is_time(
    transcript: Transcript, chat: Chat, qtbot: QtBot
) -> None:
    show(chat, 400)
    in_view_only = transcript.built()[0]

    height = transcript.viewport().height()
    qtbot.waitUntil(
        lambda: transcript._views[0].y() < transcript.verticalScrollBar().value() - height / 2
    )

    assert transcript.built()[0] < in_view_only


def test_what_a_message_showed_is_not_in_the_next_one_in_its_place(
    transcript: Transcript, chat: Chat
) -> None:
    say(chat, "first", "One.\n\n```py\nx = 1\n```\n\nTwo.", "third", "Four.")
    before = set(transcript._views)
    transcript.reveal(1, "One")

    say(chat, "other", "- a\n- b", "another", "```sh\nls\n```\n\nText.")

    assert before & set(transcript._views)  # the widgets are used again
    questions = [v.text.text() for v in transcript._views if isinstance(v, UserMessage)]
    replies = [words(v) for v in transcript._views if isinstance(v, ReplyMessage)]
    assert questions == ["other", "another"]
    assert replies == [["a\nb"], ["ls", "Text."]]
    marks = [b.extraSelections() for v in transcript._views for b in v.findChildren(ProseView)]
    assert not any(marks)


def test_a_message_with_an_open_editor_is_not_used_for_another(
    transcript: Transcript, chat: Chat
) -> None:
    say(chat, "first", "One.")
    edited = transcript._views[0]
    assert isinstance(edited, UserMessage)
    edited.open_editor()

    say(chat, "other", "Two.")

    assert edited not in transcript._views
    assert in_view(transcript) == ["other", "Two."]


def test_a_list_in_several_blocks_looks_as_it_does_in_one(
    transcript: Transcript, chat: Chat
) -> None:
    items = [f"{n}. point" for n in range(1, 31)]
    say(chat, "q", "\n".join(items))
    cut = transcript.last_reply()
    assert cut is not None
    parts = len(cut._blocks)
    whole = ProseView(transcript._theme)
    whole.fit(cut.width())
    whole.show_markdown("\n".join(items))

    assert parts == 2
    assert cut._blocks[-1].geometry().bottom() - cut._blocks[0].y() + 1 == whole.height()
    second = cut._blocks[1]
    assert isinstance(second, ProseView)
    first_block = second.document().begin()
    assert first_block.textList().itemText(first_block) == "17."


def test_the_editor_of_a_message_comes_into_view_whole(transcript: Transcript, chat: Chat) -> None:
    transcript.resize(480, 260)
    head = Conversation(
        id="c",
        title="t",
        updated=1.0,
        leaf="1",
        messages=(
            Message(id="0", role="user", text=LONG),
            Message(id="1", parent="0", role="assistant", text=LONG * 5),
        ),
    )
    chat._show(chat._opened(head))
    transcript.verticalScrollBar().setValue(60)  # its first lines are out of view
    transcript.activateWindow()
    own = transcript.last_own()
    assert own is not None

    own.open_editor()
    QCoreApplication.processEvents()

    editor = own._editor
    assert editor is not None
    top = editor.mapTo(transcript.viewport(), editor.rect().topLeft())
    bottom = editor.mapTo(transcript.viewport(), editor.rect().bottomLeft())
    assert 0 <= top.y() < bottom.y() <= transcript.viewport().height()
    lines = editor.text.document().documentLayout().documentSize().height()
    assert editor.text.height() >= min(lines, 8) * editor.text.fontMetrics().lineSpacing()


def test_the_page_stays_where_it_is_when_it_begins_to_scroll(
    transcript: Transcript, chat: Chat, qtbot: QtBot
) -> None:
    transcript.resize(900, 400)
    bar = transcript.verticalScrollBar()
    places: set[tuple[int, int]] = set()
    for count in (2, 40):
        show(chat, count)
        qtbot.waitUntil(lambda: bool(transcript._views))
        QCoreApplication.processEvents()
        places.add((transcript._views[0].x(), transcript._views[0].width()))

    assert bar.maximum() > 0
    assert len(places) == 1
