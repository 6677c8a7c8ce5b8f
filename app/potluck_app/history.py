"""The conversations on disk: one JSON file each, written as a whole or not at all. Without Qt.

All functions block: the window calls them in a thread. A file that cannot be read is skipped and
not changed: it may be a conversation of a newer version.
"""

import logging
import secrets
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from potluck.files import write_atomically

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["done", "streaming", "stopped", "failed"]

_TITLE_LENGTH = 60
_ID_LENGTH = 16  # hex characters: 64 bits, enough to avoid equal ids


class Stats(Struct, frozen=True, kw_only=True):
    """The figures of one reply, as the node measured them."""

    tokens: int
    tokens_per_s: float
    time_to_first_token_s: float
    prompt_tokens: int = 0
    model: str | None = None


class Message(Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    status: Status = "done"
    error: str | None = None  # a sentence, with `failed`
    stats: Stats | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """The part of a conversation that the list shows."""

    id: str
    title: str
    updated: float  # time of its last change, in seconds since 1970


class Conversation(Summary, frozen=True, kw_only=True):
    """A conversation."""

    messages: tuple[Message, ...] = ()


def new_id() -> str:
    """Return a new id for a conversation. The file gets the same name."""
    return secrets.token_hex(_ID_LENGTH // 2)


def title_of(first_message: str) -> str:
    """Return the title of a conversation, made from its first message."""
    line = " ".join(first_message.split())
    if len(line) <= _TITLE_LENGTH:
        return line or "New chat"
    return line[:_TITLE_LENGTH].rsplit(" ", 1)[0].rstrip(",.;:") + "…"


class History:
    """The folder with the conversations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def summaries(self) -> list[Summary]:
        """Read the summaries of all conversations, the newest first."""
        found: list[Summary] = []
        for path in self._folder.glob("*.json"):
            try:
                summary = msgspec.json.decode(path.read_bytes(), type=Summary)
                if summary.id == path.stem and summary.id.isalnum():
                    found.append(summary)
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("a conversation cannot be read file=%s: %s", path.name, error)
        return sorted(found, key=lambda summary: summary.updated, reverse=True)

    def load(self, conversation_id: str) -> Conversation | None:
        """Read one conversation; None: it does not exist or cannot be read."""
        path = self._path(conversation_id)
        try:
            conversation = msgspec.json.decode(path.read_bytes(), type=Conversation)
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a conversation cannot be read file=%s: %s", path.name, error)
            return None
        # A reply that was incomplete when the program ended is not continued.
        messages = tuple(
            msgspec.structs.replace(message, status="stopped")
            if message.status == "streaming"
            else message
            for message in conversation.messages
        )
        return msgspec.structs.replace(conversation, messages=messages)

    def save(self, conversation: Conversation) -> None:
        """Write a conversation. An interruption leaves the old or the new file, never a part."""
        data = msgspec.json.format(msgspec.json.encode(conversation), indent=1)
        write_atomically(self._path(conversation.id), data)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation."""
        self._path(conversation_id).unlink(missing_ok=True)

    def _path(self, conversation_id: str) -> Path:
        assert conversation_id.isalnum(), "an id that we made is a safe file name"
        return self._folder / f"{conversation_id}.json"
