"""Conversations as files."""

from pathlib import Path

import msgspec
import pytest

from potluck_app.chats import exchange
from potluck_app.chats.exchange import ExchangeError, Form
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Attachment, Conversation, Message, Settings, Stats

NOW = 50.0
TRICKY = "Line\n\n## You\n\n<!-- potluck: user -->\n<!-- \\potluck: user -->\n```\n# code\n```"


def conversation() -> Conversation:
    stats = Stats(tokens=2, tokens_per_s=9.0, time_to_first_token_s=0.1)
    file = Attachment(name="a.py", text="print()\n")
    return Conversation(
        id="c",
        title="Lists & more",
        updated=1.0,
        leaf="r2",
        settings=Settings(system="Be brief."),
        messages=(
            Message(id="q", role="user", text="How?", attachments=(file,)),
            Message(id="r1", parent="q", role="assistant", text="So.", stats=stats),
            Message(id="r2", parent="q", role="assistant", text=TRICKY, status="streaming"),
            Message(id="r3", parent="q", role="assistant", text="Or so."),
        ),
    )


def back(tmp_path: Path, form: Form) -> Conversation:
    path = tmp_path / f"chat.{form}"
    assert str(path) in exchange.export(conversation(), path, form)
    return exchange.import_file(path, NOW)


def test_json_brings_all_versions_back_under_new_ids(tmp_path: Path) -> None:
    read = back(tmp_path, "json")

    plain = msgspec.structs.replace
    assert [plain(m, id="", parent=None) for m in read.messages] == [
        plain(m, id="", parent=None, status="stopped" if m.id == "r2" else "done")
        for m in conversation().messages
    ]
    assert {m.id for m in read.messages}.isdisjoint({"q", "r1", "r2", "r3"})
    assert [m.text for m in Tree(read.messages, read.leaf).path()] == ["How?", TRICKY]
    assert (read.title, read.updated, read.settings.system) == ("Lists & more", NOW, "Be brief.")


def test_markdown_brings_the_shown_path_back_whatever_is_written_in_it(tmp_path: Path) -> None:
    read = back(tmp_path, "md")

    assert [(m.role, m.text) for m in read.messages] == [
        ("user", "How?\n\na.py:\n```\nprint()\n```"),
        ("assistant", TRICKY),
    ]
    assert read.title == "Lists & more"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# Notes\n\nNothing.",
        b"{}",
        b'{"title": "x", "messages": []}',
        b'{"title": "x", "messages": [{"id": "a", "role": "user", "text": "", "parent": "b"}]}',
        b'{"title": "x", "potluck_chat": 2, "messages": [{"id": "a", "role": "user", "text": ""}]}',
        b"\xff\xfe\x00",
    ],
)
def test_a_file_without_a_chat_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)

    with pytest.raises(ExchangeError, match="holds no chat"):
        exchange.import_file(path, NOW)


def test_a_place_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="could not be read"):
        exchange.import_file(tmp_path / "none.json", NOW)
    (tmp_path / "file").write_text("")

    assert "could not be written" in exchange.export(conversation(), tmp_path / "file" / "x", "md")


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(exchange.MAX_BYTES + 1)

    with pytest.raises(ExchangeError, match="268"):
        exchange.import_file(path, NOW)


def test_a_branch_has_the_path_and_the_settings_under_ids_of_its_own() -> None:
    head = conversation()
    path = Tree(head.messages, "r1").path()

    new = exchange.branch(head, path, NOW)

    assert new.title == "Lists & more (2)"
    assert new.settings == head.settings
    assert [m.text for m in new.messages] == ["How?", "So."]
    assert new.messages[0].attachments == head.messages[0].attachments
    assert new.leaf == new.messages[1].id
    assert not {m.id for m in new.messages} & {m.id for m in head.messages}
