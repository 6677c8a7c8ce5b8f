"""The conversations on disk: one JSON file each, written whole or not at all. Free of Qt.

Everything here blocks; the window calls it from a thread of its own. A file that cannot be read is
left where it is and skipped: a conversation of a newer version is not ours to delete.
"""

import logging
import secrets
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from potluck.files import PRIVATE, write_atomically

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["done", "streaming", "stopped", "failed"]

_TITLE_LENGTH = 60
_ID_LENGTH = 16  # hex characters: 64 bits keep the conversations of a lifetime apart


class Stats(Struct, frozen=True, kw_only=True):
    """What one reply cost, as the node measured it."""

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


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation; `updated` is when it was last changed, in seconds since 1970."""

    id: str
    title: str
    updated: float
    messages: tuple[Message, ...] = ()


class Summary(Struct, frozen=True, kw_only=True):
    """What the list shows of a conversation."""

    id: str
    title: str
    updated: float


def new_id() -> str:
    """A name for a new conversation, which is also its file's."""
    return secrets.token_hex(_ID_LENGTH // 2)


def title_of(first_message: str) -> str:
    """The title that a conversation gets from its first message."""
    line = " ".join(first_message.split())
    if len(line) <= _TITLE_LENGTH:
        return line or "New chat"
    return line[:_TITLE_LENGTH].rsplit(" ", 1)[0].rstrip(",.;:") + "…"


class History:
    """The folder of conversations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def summaries(self) -> list[Summary]:
        """All conversations, the newest first."""
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
        """One conversation, or None where there is none that can be read."""
        path = self._path(conversation_id)
        try:
            conversation = msgspec.json.decode(path.read_bytes(), type=Conversation)
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a conversation cannot be read file=%s: %s", path.name, error)
            return None
        # A reply that was being written when the program ended will not go on.
        messages = tuple(
            msgspec.structs.replace(message, status="stopped")
            if message.status == "streaming"
            else message
            for message in conversation.messages
        )
        return msgspec.structs.replace(conversation, messages=messages)

    def save(self, conversation: Conversation) -> None:
        """Write a conversation. An interruption leaves the old file or the new one, never a half."""
        data = msgspec.json.format(msgspec.json.encode(conversation), indent=1)
        write_atomically(self._path(conversation.id), data, mode=PRIVATE)

    def delete(self, conversation_id: str) -> None:
        """Forget a conversation."""
        self._path(conversation_id).unlink(missing_ok=True)

    def _path(self, conversation_id: str) -> Path:
        assert conversation_id.isalnum(), "an id that we made is a safe file name"
        return self._folder / f"{conversation_id}.json"
