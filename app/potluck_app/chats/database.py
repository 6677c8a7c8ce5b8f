"""The SQLite file of the conversations: its tables, its version, and who may read it. Without Qt.

The journal is a write-ahead log: a program that is killed loses nothing that was committed, and a
power cut at most the last moments. Texts are indexed for the search by triggers, so the index and
the messages never differ. A reply that is still being written is indexed when it ends.
"""

import os
import sqlite3
from pathlib import Path

from potluck.reasons import reason

VERSION = 1  # of the tables, in `PRAGMA user_version`

_WHY = {  # the beginning of SQLite's name for an error → the words for it
    "SQLITE_FULL": "the disk is full",
    "SQLITE_BUSY": "another program uses it",
    "SQLITE_LOCKED": "another program uses it",
    "SQLITE_READONLY": "it can only be read",
    "SQLITE_CANTOPEN": "its folder is not there, or you are not allowed to",
    "SQLITE_IOERR": "the disk does not work",
}

_TABLES = """
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    updated REAL NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    leaf TEXT,                             -- last message of the path that is shown
    settings TEXT NOT NULL DEFAULT '{}',   -- JSON
    deleted INTEGER NOT NULL DEFAULT 0     -- until it is forgotten, it can come back
);
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY,               -- the order in which messages were made
    id TEXT NOT NULL UNIQUE,
    chat TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    parent TEXT REFERENCES messages(id) ON DELETE CASCADE,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    rest TEXT NOT NULL DEFAULT '{}'        -- JSON: error, code, stats, attachments
);
CREATE INDEX messages_of_chat ON messages(chat, seq);
CREATE INDEX messages_of_parent ON messages(parent);
CREATE TABLE drafts (chat TEXT PRIMARY KEY, draft TEXT NOT NULL);  -- '': of the new chat
CREATE TABLE presets (name TEXT PRIMARY KEY, settings TEXT NOT NULL);
CREATE TABLE taken_over (name TEXT PRIMARY KEY);  -- files of before that are in the tables
CREATE VIRTUAL TABLE words USING fts5(
    text, content='messages', content_rowid='seq', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER words_insert AFTER INSERT ON messages WHEN new.status <> 'streaming' BEGIN
    INSERT INTO words(rowid, text) VALUES (new.seq, new.text);
END;
CREATE TRIGGER words_delete AFTER DELETE ON messages WHEN old.status <> 'streaming' BEGIN
    INSERT INTO words(words, rowid, text) VALUES ('delete', old.seq, old.text);
END;
CREATE TRIGGER words_update AFTER UPDATE ON messages BEGIN
    INSERT INTO words(words, rowid, text)
        SELECT 'delete', old.seq, old.text WHERE old.status <> 'streaming';
    INSERT INTO words(rowid, text) SELECT new.seq, new.text WHERE new.status <> 'streaming';
END;
"""


class HistoryError(Exception):
    """The file of the conversations cannot be used. The message is a sentence for the person."""


def why(error: Exception) -> str:
    """Return why the file of chats cannot be read or written, in the words of a person."""
    if not isinstance(error, sqlite3.Error):
        return reason(error)
    name = getattr(error, "sqlite_errorname", "")
    return next((words for code, words in _WHY.items() if name.startswith(code)), "it is damaged")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file, and make it if there is none. Only its owner may read it.

    Raises:
        HistoryError: the file is broken, of a newer version, or cannot be opened. It stays as it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite would make it with the usual mode; its two journals get the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise HistoryError(
            f"The file of your chats, {path}, cannot be opened: {why(error)}. Check that the disk is "
            "there and not full. Until then, chats are not kept."
        ) from error
    try:
        prepare(database)
    except sqlite3.Error as error:
        database.close()
        raise HistoryError(
            f"The file of your chats, {path}, cannot be used: {why(error)}. It stays as it is; "
            "what you write now is not kept. Restore it from a backup, or move it away to begin "
            "anew."
        ) from error
    except HistoryError as error:
        database.close()
        raise HistoryError(f"{error} The file is {path}.") from None
    return database


def prepare(database: sqlite3.Connection) -> None:
    """Set a connection up, make missing tables, and end replies that were cut off.

    Raises:
        HistoryError: the tables are of a newer version. Nothing was changed.
        sqlite3.Error: this is no database, or a damaged one.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise HistoryError(
            "Your chats were written by a newer version of Potluck. Update Potluck to see them; "
            "until then they stay as they are, and what you write now is not kept."
        )
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA busy_timeout = 5000")
    database.execute("PRAGMA foreign_keys = ON")
    database.execute("PRAGMA secure_delete = ON")  # what was deleted cannot be read from the file
    if version == 0:
        database.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {VERSION};COMMIT;")
    database.execute("UPDATE messages SET status = 'stopped' WHERE status = 'streaming'")
