"""Conversations on disk."""

import os
import stat
from pathlib import Path

import pytest

from potluck_app.history import Conversation, History, Message, Stats, new_id, title_of

STATS = Stats(tokens=3, tokens_per_s=7.5, time_to_first_token_s=0.4, prompt_tokens=9, model="guide")


def conversation(title: str = "Lists", updated: float = 5.0) -> Conversation:
    messages = (
        Message(role="user", text="How? \u200d👩‍👧"),
        Message(role="assistant", text="So.", stats=STATS),
    )
    return Conversation(id=new_id(), title=title, updated=updated, messages=messages)


def test_a_conversation_comes_back_as_it_was(history: History) -> None:
    written = conversation()

    history.save(written)

    assert history.load(written.id) == written


def test_the_newest_conversation_is_the_first_of_the_list(history: History) -> None:
    for title, updated in (("old", 1.0), ("new", 3.0), ("middle", 2.0)):
        history.save(conversation(title, updated))

    assert [summary.title for summary in history.summaries()] == ["new", "middle", "old"]


def test_an_empty_folder_has_no_conversations(history: History) -> None:
    assert history.summaries() == []
    assert history.load(new_id()) is None


def test_a_file_that_cannot_be_read_is_skipped_and_kept(history: History, tmp_path: Path) -> None:
    history.save(conversation())
    broken = tmp_path / "conversations" / "broken.json"
    broken.write_text('{"id": "broken", "title"')

    assert len(history.summaries()) == 1
    assert history.load("broken") is None
    assert broken.exists()


def test_a_file_that_claims_another_name_is_skipped(history: History, tmp_path: Path) -> None:
    history.save(conversation())
    (tmp_path / "conversations" / "other.json").write_text(
        '{"id": "../../secret", "title": "x", "updated": 1}'
    )

    assert len(history.summaries()) == 1


def test_an_interrupted_save_leaves_the_old_file(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = conversation()
    history.save(written)
    monkeypatch.setattr(os, "fsync", _disk_is_full)

    with pytest.raises(OSError, match="full"):
        history.save(Conversation(id=written.id, title="newer", updated=9.0))

    assert history.load(written.id) == written
    assert [path.name for path in (tmp_path / "conversations").iterdir()] == [f"{written.id}.json"]


def _disk_is_full(_descriptor: int) -> None:
    raise OSError("disk full")


def test_a_reply_that_was_being_written_is_a_stopped_one(history: History) -> None:
    streaming = Message(role="assistant", text="So f", status="streaming")
    history.save(Conversation(id="ab", title="t", updated=1.0, messages=(streaming,)))

    loaded = history.load("ab")

    assert loaded is not None
    assert loaded.messages[0].status == "stopped"


def test_a_deleted_conversation_is_gone(history: History) -> None:
    written = conversation()
    history.save(written)

    history.delete(written.id)
    history.delete(written.id)

    assert history.summaries() == []


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_nobody_else_can_read_a_conversation(history: History, tmp_path: Path) -> None:
    history.save(conversation())

    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "conversations").iterdir()}

    assert modes == {0o600}


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Split a\n list", "Split a list"),
        ("word " * 30, ("word " * 12).strip() + "…"),
        ("x" * 100, "x" * 60 + "…"),
        (" \n ", "New chat"),
    ],
)
def test_the_title_is_the_beginning_of_the_first_message(message: str, title: str) -> None:
    assert title_of(message) == title
