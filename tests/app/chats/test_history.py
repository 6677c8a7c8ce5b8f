"""Conversations on disk."""

import os
import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from potluck_app.chats.database import VERSION
from potluck_app.chats.history import History
from potluck_app.chats.search import pattern_of
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Draft,
    Message,
    Preset,
    Settings,
    Stats,
    new_id,
)

STATS = Stats(tokens=3, tokens_per_s=7.5, time_to_first_token_s=0.4, prompt_tokens=9, model="guide")


def conversation(title: str = "Lists", updated: float = 5.0, reply: str = "So.") -> Conversation:
    asked, said, other = new_id(), new_id(), new_id()
    file = Attachment(name="a.py", text="print()")
    return Conversation(
        id=new_id(),
        title=title,
        updated=updated,
        leaf=said,
        settings=Settings(system="Be brief.", temperature=0.2, seed=7),
        messages=(
            Message(id=asked, role="user", text="How? \u200d👩‍👧", attachments=(file,)),
            Message(id=said, parent=asked, role="assistant", text=reply, stats=STATS),
            Message(
                id=other,
                parent=asked,
                role="assistant",
                text="",
                status="failed",
                error="Mac left.",
                code="peer_lost",
            ),
        ),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite"


def again(path: Path) -> History:
    """The same file, as the next start of the program finds it."""
    history = History(path)
    assert history.open() == ""
    return history


def test_a_conversation_comes_back_as_it_was(history: History, path: Path) -> None:
    written = conversation()

    history.save(written)

    assert history.load(written.id) == written
    assert again(path).load(written.id) == written


def test_a_conversation_is_written_in_the_place_of_the_one_before(history: History) -> None:
    written = conversation()
    history.save(written)

    history.save(msgspec.structs.replace(written, messages=written.messages[:1], leaf=None))

    loaded = history.load(written.id)
    assert loaded is not None
    assert loaded.messages == written.messages[:1]
    assert history.search("So") == []


def test_the_newest_conversation_is_the_first_of_the_list(history: History) -> None:
    for title, updated in (("old", 1.0), ("new", 3.0), ("middle", 2.0)):
        history.save(conversation(title, updated))

    assert [summary.title for summary in history.summaries()] == ["new", "middle", "old"]


def test_an_empty_file_has_no_conversations(history: History) -> None:
    assert history.summaries() == []
    assert history.load(new_id()) is None


def test_a_reply_grows_on_the_disk_and_is_a_stopped_one_after_a_crash(
    history: History, path: Path
) -> None:
    chat = Conversation(id="ab", title="t", updated=1.0)
    history.put(chat)
    growing = Message(id="1", role="assistant", text="So", status="streaming")
    history.put_message(chat.id, growing)
    history.put_message(chat.id, msgspec.structs.replace(growing, text="So far"))

    after = again(path)  # nothing was closed: the program was killed

    loaded = after.load("ab")
    assert loaded is not None
    assert [(m.text, m.status) for m in loaded.messages] == [("So far", "stopped")]
    assert [hit.message for hit in after.search("far")] == ["1"]


def test_a_deleted_conversation_comes_back_until_it_is_forgotten(
    history: History, path: Path
) -> None:
    written = conversation()
    history.save(written)

    history.delete(written.id)
    assert history.summaries() == []
    assert history.search("So") == []
    history.delete(written.id, deleted=False)
    assert [summary.id for summary in history.summaries()] == [written.id]

    history.delete(written.id)
    assert again(path).load(written.id) is None


def test_what_was_deleted_and_forgotten_is_not_in_the_file(history: History, path: Path) -> None:
    written = conversation(reply="xylophone secrets")
    history.save(written)
    history.delete(written.id)

    history.forget_deleted()
    history.close()

    assert b"xylophone" not in path.read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_nobody_else_can_read_the_conversations(history: History, tmp_path: Path) -> None:
    history.save(conversation())

    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.glob("chats.sqlite*")}

    assert len(modes) == 3  # the file and its journals
    assert set(modes.values()) == {0o600}


def test_a_file_of_a_newer_version_stays_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()
    before = path.read_bytes()
    history = History(path)

    trouble = history.open()
    written = conversation()
    history.save(written)

    assert "newer version" in trouble
    assert str(path) in trouble
    assert history.load(written.id) == written  # as long as the program runs
    history.close()
    assert path.read_bytes() == before


def test_a_damaged_file_stays_as_it_is(path: Path) -> None:
    path.write_bytes(b"This is no database at all. " * 100)
    before = path.read_bytes()
    history = History(path)

    trouble = history.open()
    history.save(conversation())

    assert "damaged" in trouble
    history.close()
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "cannot be opened" in History(tmp_path / "file" / "chats.sqlite").open()


def test_a_save_that_fails_changes_nothing(history: History) -> None:
    written = conversation()
    history.save(written)
    twice = (*written.messages, Message(id="x", parent="nobody", role="user", text=""))

    with pytest.raises(sqlite3.Error):
        history.save(msgspec.structs.replace(written, title="newer", messages=twice))

    assert history.load(written.id) == written


def test_drafts_and_presets_are_kept(history: History, path: Path) -> None:
    draft = Draft(text="half a", attachments=(Attachment(name="a", text="b"),))
    history.put_draft("", draft)
    history.put_draft("ab", Draft(text="gone"))
    history.put_draft("ab", Draft())
    history.put_preset(Preset(name="Brief", settings=Settings(system="Be brief.")))
    history.put_preset(Preset(name="Old", settings=Settings()))
    history.delete_preset("Old")

    after = again(path)

    assert (after.draft(""), after.draft("ab")) == (draft, Draft())
    assert after.presets() == [Preset(name="Brief", settings=Settings(system="Be brief."))]


# --- search


def test_a_search_finds_titles_and_then_messages(history: History) -> None:
    by_title = conversation("Garden plan", 1.0, "Water it.")
    by_text = conversation("Rain", 2.0, "A garden needs water in the évening.")
    for each in (by_title, by_text):
        history.save(each)

    hits = history.search("garden")

    assert [(hit.chat, hit.message) for hit in hits] == [
        (by_title.id, None),
        (by_text.id, by_text.messages[1].id),
    ]
    assert hits[1].excerpt == "A garden needs water in the évening."
    assert [hit.chat for hit in history.search("EVEN wat")] == [by_text.id]


def test_a_word_is_found_in_a_text_without_spaces(history: History) -> None:
    text = "\u5ead\u306e\u6728\u306f\u9ad8\u3044"  # "the trees of the garden are high", in Japanese
    saved = conversation()
    message = msgspec.structs.replace(saved.messages[1], text=text)
    history.save(msgspec.structs.replace(saved, messages=(saved.messages[0], message)))

    (hit,) = history.search("\u6728 \u9ad8")  # "tree", "high"

    assert (hit.message, hit.excerpt) == (message.id, text)
    pattern = pattern_of("\u6728")
    assert pattern is not None
    assert pattern.findall(text) == ["\u6728"]


@pytest.mark.parametrize("text", ["", "  ", '"', "a AND (", "* - ^", "NEAR(", "nothing like it"])
def test_a_search_without_a_hit_is_empty_whatever_is_typed(history: History, text: str) -> None:
    history.save(conversation())

    assert history.search(text) == []


# --- the files of before

FORMER = """{"id": "ab12", "title": "Before", "updated": 3.5, "messages": [
 {"role": "user", "text": "How?"},
 {"role": "assistant", "text": "So f", "status": "streaming"},
 {"role": "user", "text": "And?"},
 {"role": "assistant", "text": "No", "status": "failed", "error": "Mac is gone.",
  "stats": {"tokens": 2, "tokens_per_s": 9.5, "time_to_first_token_s": 0.5}}]}"""


def test_the_files_of_before_are_taken_over_once_and_kept(tmp_path: Path, path: Path) -> None:
    former = tmp_path / "conversations"
    former.mkdir()
    (former / "ab12.json").write_text(FORMER)
    (former / "broken.json").write_text('{"id": "broken", "title"')
    (former / "other.json").write_text('{"id": "../../secret", "title": "x", "updated": 1}')
    before = {file.name: file.read_bytes() for file in former.iterdir()}

    history = History(path, former)
    assert history.open() == ""
    loaded = history.load("ab12")
    history.delete("ab12")
    history.close()

    assert loaded is not None
    assert (loaded.title, loaded.updated) == ("Before", 3.5)
    assert [(m.role, m.text, m.status) for m in loaded.messages] == [
        ("user", "How?", "done"),
        ("assistant", "So f", "stopped"),
        ("user", "And?", "done"),
        ("assistant", "No", "failed"),
    ]
    ids = [m.id for m in loaded.messages]
    assert [m.parent for m in loaded.messages] == [None, *ids[:3]]
    assert loaded.leaf == ids[3]
    assert loaded.messages[3].error == "Mac is gone."
    assert loaded.messages[3].stats == Stats(
        tokens=2, tokens_per_s=9.5, time_to_first_token_s=0.5, prompt_tokens=0
    )
    assert {file.name: file.read_bytes() for file in former.iterdir()} == before
    after = History(path, former)
    after.open()
    assert after.summaries() == []  # it was deleted, and does not come back
