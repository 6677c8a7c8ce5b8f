"""The conversations on disk, in one SQLite file. Without Qt.

All functions block, and all are called in one thread: the window has one that writes. If the file
cannot be used, the conversations of this run are kept in memory, and `trouble` says why.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from potluck_app.chats import legacy, search
from potluck_app.chats.database import HistoryError, open_database, prepare
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Draft,
    Hit,
    Message,
    Preset,
    Settings,
    Stats,
    Summary,
)

logger = logging.getLogger(__name__)

MOST_HITS = 100


class _Rest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a message that no query asks for."""

    error: str | None = None
    code: str | None = None
    stats: Stats | None = None
    attachments: tuple[Attachment, ...] = ()
    cut: bool = False


class History:
    """The file with the conversations."""

    def __init__(self, path: Path, former: Path | None = None) -> None:
        """Nothing is opened yet.

        Args:
            path: of the file.
            former: the folder with the JSON files of earlier versions, which are taken over once.
        """
        self._path, self._former = path, former
        self._database: sqlite3.Connection | None = None

    def open(self) -> str:
        """Open the file, and take over the files of before.

        Returns:
            A sentence if the conversations of this run cannot be kept, else nothing.
        """
        if self._database is not None:
            return ""
        trouble = ""
        try:
            self._database = open_database(self._path)
        except HistoryError as error:
            logger.warning("conversations are kept in memory: %s", error)
            trouble = str(error)
            self._database = sqlite3.connect(
                ":memory:", isolation_level=None, check_same_thread=False
            )
            prepare(self._database)
        self.forget_deleted()
        if self._former is not None and not trouble:
            self._take_over(self._former)
        return trouble

    def close(self) -> None:
        """Write the journal into the file and close it."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def _sql(self) -> sqlite3.Connection:
        if self._database is None:
            self.open()
        assert self._database is not None
        return self._database

    # --- reading

    def summaries(self) -> list[Summary]:
        """Read the summaries of all conversations, the newest first."""
        rows = self._sql.execute(
            "SELECT id, title, updated, pinned FROM chats WHERE NOT deleted ORDER BY updated DESC"
        )
        return [
            Summary(id=chat, title=title, updated=updated, pinned=bool(pinned))
            for chat, title, updated, pinned in rows
        ]

    def load(self, chat: str) -> Conversation | None:
        """Read one conversation; None: there is none of this id."""
        row = self._sql.execute(
            "SELECT title, updated, pinned, leaf, settings FROM chats WHERE id = ?", (chat,)
        ).fetchone()
        if row is None:
            return None
        title, updated, pinned, leaf, settings = row
        messages = self._sql.execute(
            "SELECT id, parent, role, text, status, rest FROM messages WHERE chat = ? ORDER BY seq",
            (chat,),
        )
        return Conversation(
            id=chat,
            title=title,
            updated=updated,
            pinned=bool(pinned),
            leaf=leaf,
            settings=msgspec.json.decode(settings, type=Settings),
            messages=tuple(_message(row) for row in messages),
        )

    def search(self, text: str) -> list[Hit]:
        """Find the conversations whose title has this text, then the messages with its words."""
        wanted = text.strip().casefold()
        hits = [
            Hit(chat=summary.id, title=summary.title)
            for summary in self.summaries()
            if wanted and wanted in summary.title.casefold()
        ]
        hits += [
            Hit(chat=chat, title=title, message=message, excerpt=search.excerpt(found, text))
            for chat, title, message, found in self._messages_with(text)
        ]
        return hits[:MOST_HITS]

    def _messages_with(self, text: str) -> list[tuple[str, str, str, str]]:
        """Return id and title of the chat, id and text of each message with these words."""
        words = search.words_of(text)
        if not words:
            return []
        if search.is_unspaced(text):
            source = "messages m"
            condition = "m.status <> 'streaming'" + " AND instr(m.text, ?)" * len(words)
        else:
            source, words = "words JOIN messages m ON m.seq = words.rowid", [search.query_of(text)]
            condition = "words MATCH ?"
        return self._sql.execute(
            f"SELECT c.id, c.title, m.id, m.text FROM {source} JOIN chats c ON c.id = m.chat"  # noqa: S608 - ours
            f" WHERE {condition} AND NOT c.deleted ORDER BY m.seq DESC LIMIT ?",
            (*words, MOST_HITS),
        ).fetchall()

    def draft(self, chat: str) -> Draft:
        """Read what was written in a conversation and not sent. An empty id: the new chat."""
        row = self._sql.execute("SELECT draft FROM drafts WHERE chat = ?", (chat,)).fetchone()
        return Draft() if row is None else msgspec.json.decode(row[0], type=Draft)

    def presets(self) -> list[Preset]:
        """Read the presets of the person, by name."""
        rows = self._sql.execute("SELECT name, settings FROM presets ORDER BY name")
        return [
            Preset(name=name, settings=msgspec.json.decode(settings, type=Settings))
            for name, settings in rows
        ]

    # --- writing

    def save(self, conversation: Conversation) -> None:
        """Write a whole conversation, in the place of one with its id."""
        with self._together():
            self._sql.execute("DELETE FROM chats WHERE id = ?", (conversation.id,))
            self._put_whole(conversation)

    def add(self, conversation: Conversation) -> None:
        """Write a conversation; the messages that are on disk and not in it stay."""
        with self._together():
            self._put_whole(conversation)

    def _put_whole(self, conversation: Conversation) -> None:
        self.put(conversation)
        for message in conversation.messages:
            self.put_message(conversation.id, message)

    def put(self, chat: Summary) -> None:
        """Write title, time and pin of a conversation; of a whole one also settings and leaf."""
        values: dict[str, object] = {
            "title": chat.title,
            "updated": chat.updated,
            "pinned": int(chat.pinned),
        }
        if isinstance(chat, Conversation):
            values |= {"leaf": chat.leaf, "settings": _json(chat.settings)}
        columns = ", ".join(values)
        changes = ", ".join(f"{name} = excluded.{name}" for name in values)
        self._sql.execute(
            f"INSERT INTO chats (id, {columns}) VALUES (?{', ?' * len(values)})"  # noqa: S608 - our names
            f" ON CONFLICT (id) DO UPDATE SET {changes}",
            (chat.id, *values.values()),
        )

    def put_message(self, chat: str, message: Message) -> None:
        """Write a message of a conversation, in the place of one with its id."""
        rest = msgspec.convert(message, _Rest, from_attributes=True)
        self._sql.execute(
            "INSERT INTO messages (id, chat, parent, role, text, status, rest)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " text = excluded.text, status = excluded.status, rest = excluded.rest",
            (
                message.id,
                chat,
                message.parent,
                message.role,
                message.text,
                message.status,
                _json(rest),
            ),
        )

    def put_draft(self, chat: str, draft: Draft) -> None:
        """Keep what was written and not sent; an empty draft is forgotten."""
        if draft == Draft():
            self._sql.execute("DELETE FROM drafts WHERE chat = ?", (chat,))
        else:
            self._sql.execute("REPLACE INTO drafts VALUES (?, ?)", (chat, _json(draft)))

    def put_preset(self, preset: Preset) -> None:
        self._sql.execute(
            "REPLACE INTO presets VALUES (?, ?)", (preset.name, _json(preset.settings))
        )

    def delete_preset(self, name: str) -> None:
        self._sql.execute("DELETE FROM presets WHERE name = ?", (name,))

    def delete(self, chat: str, *, deleted: bool = True) -> None:
        """Hide a conversation until it is forgotten, or with False, show it again."""
        self._sql.execute("UPDATE chats SET deleted = ? WHERE id = ?", (int(deleted), chat))

    def forget_deleted(self) -> None:
        """Remove the deleted conversations from the file, and their words from the index."""
        if self._sql.execute("SELECT 1 FROM chats WHERE deleted LIMIT 1").fetchone() is None:
            return
        with self._together():
            self._sql.execute(
                "DELETE FROM drafts WHERE chat IN (SELECT id FROM chats WHERE deleted)"
            )
            self._sql.execute("DELETE FROM chats WHERE deleted")
            self._sql.execute("INSERT INTO words(words) VALUES ('optimize')")

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Write all of it or nothing."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._sql.execute("ROLLBACK")
            raise
        self._sql.execute("COMMIT")

    def _take_over(self, folder: Path) -> None:
        """Copy the JSON files of earlier versions, each once. The files stay as they are."""
        known = {name for (name,) in self._sql.execute("SELECT name FROM taken_over")}
        for name, conversation in legacy.conversations(folder, known):
            with self._together():
                self._sql.execute("INSERT INTO taken_over VALUES (?)", (name,))
                self._put_whole(conversation)


def _message(row: tuple[str, str | None, str, str, str, str]) -> Message:
    message_id, parent, role, text, status, rest = row
    fields = msgspec.structs.asdict(msgspec.json.decode(rest, type=_Rest))
    return Message(id=message_id, parent=parent, role=role, text=text, status=status, **fields)  # pyright: ignore[reportArgumentType] - what was written


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
