"""The chats on the disk: searched, exported and imported, written at the end, refused."""

import json
import sqlite3
from pathlib import Path

import pytest
from chat_talk import answer, ask, on_disk, settled, shown, texts, words
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.history import History
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole

pytestmark = pytest.mark.qt


def test_a_message_that_was_found_is_shown_whatever_version_it_is_in(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(chat, backend, "one", "a walnut")
    chat.regenerate()
    answer(backend, "a pear")
    chat.new()
    with qtbot.waitSignal(chat.found) as found:
        chat.search("walnut")
    assert found.args == [1]
    hit = chat.list.index(1)

    with qtbot.waitSignal(chat.revealed) as revealed:
        chat.open(hit.data(ChatListRole.ID), hit.data(ChatListRole.MESSAGE), "walnut")

    assert revealed.args == [1, "walnut"]
    assert words(chat) == ["one", "a walnut"]
    chat.search("")
    assert chat.list.rowCount() == 2


def test_only_the_newest_search_is_shown(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    ask(chat, backend, "one", "a walnut")
    found: list[int] = []
    chat.found.connect(found.append)

    for typed in ("w", "wa", "wax"):
        chat.search(typed)
    settled(chat, qtbot)

    assert found == [0]


def test_a_chat_is_exported_and_imported(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot, tmp_path: Path
) -> None:
    ask(chat, backend, "one", "1")
    path = tmp_path / "chat.json"
    with qtbot.waitSignal(chat.said) as said:
        chat.export(shown(chat), path, "json")
    assert said.args is not None
    assert str(path) in said.args[0]
    assert json.loads(path.read_text())["title"] == "one"
    before = shown(chat)

    chat.import_file(path)

    qtbot.waitUntil(lambda: chat.shown_id not in (None, before))
    assert words(chat) == ["one", "1"]
    with qtbot.waitSignal(chat.trouble) as trouble:
        chat.import_file(tmp_path / "none.md")
    assert trouble.args is not None
    assert "could not be read" in trouble.args[0]


# --- the disk


def test_closing_writes_what_is_still_to_be_written(
    backend: ScriptedBackend, history: History, tmp_path: Path
) -> None:
    chat = Chat(backend, history)
    chat.send("one")
    backend.replies[-1].text.emit("half")

    chat.close()

    assert on_disk(History(tmp_path / "chats.sqlite")) == [("one", "half")]


@pytest.fixture
def full_disk(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    for name in ("add", "put_message"):
        monkeypatch.setattr(history, name, refuse)


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_refuses_is_told_and_the_chat_goes_on(
    chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    with qtbot.waitSignal(chat.trouble) as trouble:
        chat.send("one")
    answer(backend, "1", "2")

    assert trouble.args is not None
    assert "disk is full" in trouble.args[0]
    assert texts(chat)[-1] == ("assistant", "12", "done")


def test_a_file_of_a_newer_version_is_told(
    backend: ScriptedBackend, qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "newer.sqlite"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    chat = Chat(backend, History(path))

    with qtbot.waitSignal(chat.unkept) as trouble:
        chat.start()

    assert trouble.args is not None
    assert "newer version" in trouble.args[0]
    chat.close()
