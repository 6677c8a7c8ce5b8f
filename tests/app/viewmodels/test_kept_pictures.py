"""Pictures go through what a message goes through: the disk, versions, branches, files."""

import base64
from pathlib import Path

import pytest
from chat_talk import answer, settled, shown
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.history import History
from potluck_app.chats.values import Attachment, Draft
from potluck_app.viewmodels.chat import Chat

pytestmark = pytest.mark.qt

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(100))).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(50)).decode()
PICTURES = (Attachment(name="a [1].png", picture=PNG), Attachment(name="b.jpg", picture=JPEG))
NOTE = Attachment(name="note.md", text="![x](y)\n")


@pytest.fixture
def asked(chat: Chat, backend: ScriptedBackend, qtbot: QtBot) -> Chat:
    """A chat with one message, which has pictures and a file, and its reply."""
    chat.send("What?", (*PICTURES, NOTE))
    answer(backend, "Two pictures.")
    settled(chat, qtbot)
    return chat


def sent(backend: ScriptedBackend) -> tuple[Attachment, ...]:
    """The pictures that were sent last."""
    return tuple(each for message in backend.chats[-1] for each in message.attachments)


def test_after_a_restart_they_are_there_and_sent_with_the_next_message(
    asked: Chat, backend: ScriptedBackend, history: History, qtbot: QtBot
) -> None:
    again = Chat(backend, history)
    try:
        again.open(shown(asked))
        qtbot.waitUntil(lambda: again.messages.rowCount() == 2)
        assert again.messages.at(0).attachments == (*PICTURES, NOTE)
        again.send("And now?")
        assert sent(backend) == PICTURES
    finally:
        again.close()


def test_another_version_of_the_question_has_them_also_without_words(
    asked: Chat, backend: ScriptedBackend
) -> None:
    asked.edit(asked.messages.at(0).id, "Where?")
    answer(backend, "There.")
    assert asked.messages.at(0).text == "Where?"
    assert sent(backend) == PICTURES

    asked.edit(asked.messages.at(0).id, "")
    answer(backend, "Here.")
    assert asked.messages.at(0).attachments == (*PICTURES, NOTE)

    asked.choose(asked.messages.at(0).id, -1)
    assert asked.messages.at(0).text == "Where?"
    assert asked.messages.at(0).attachments == (*PICTURES, NOTE)


def test_another_reply_is_asked_for_with_them(asked: Chat, backend: ScriptedBackend) -> None:
    asked.regenerate()

    assert len(backend.chats) == 2
    assert sent(backend) == PICTURES


def test_a_branch_begins_with_them(asked: Chat, backend: ScriptedBackend, qtbot: QtBot) -> None:
    first = shown(asked)
    asked.branch(asked.messages.at(1).id)
    qtbot.waitUntil(lambda: asked.shown_id not in (None, first))

    asked.send("And now?")

    assert asked.messages.at(0).attachments == (*PICTURES, NOTE)
    assert sent(backend) == PICTURES


def test_a_draft_keeps_them(chat: Chat, history: History, qtbot: QtBot) -> None:
    draft = Draft(text="And", attachments=PICTURES)
    chat.set_draft(draft)
    chat.close()

    history.open()
    assert history.draft("") == draft


@pytest.mark.parametrize("form", ["json", "md"])
def test_a_file_has_them_and_brings_them_back(
    asked: Chat, backend: ScriptedBackend, qtbot: QtBot, tmp_path: Path, form: str
) -> None:
    first, path = shown(asked), tmp_path / f"chat.{form}"
    with qtbot.waitSignal(asked.said):
        asked.export(first, path, form)  # pyright: ignore[reportArgumentType]
    asked.import_file(path)
    qtbot.waitUntil(lambda: asked.shown_id not in (None, first) and asked.messages.rowCount() == 2)

    read = asked.messages.at(0)
    assert [each.picture for each in read.attachments if each.picture] == [PNG, JPEG]
    assert read.text.startswith("What?")
    assert PNG not in read.text
    asked.send("And now?")
    assert [each.picture for each in sent(backend)] == [PNG, JPEG]


def test_a_markdown_file_names_the_format_of_a_picture(
    asked: Chat, tmp_path: Path, qtbot: QtBot
) -> None:
    path = tmp_path / "chat.md"
    with qtbot.waitSignal(asked.said):
        asked.export(shown(asked), path, "md")

    lines = path.read_text().splitlines()
    assert f"![a 1 .png](data:image/png;base64,{PNG})" in lines
    assert f"![b.jpg](data:image/jpeg;base64,{JPEG})" in lines
