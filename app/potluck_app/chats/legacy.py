"""Read the conversations of earlier versions: one JSON file each, which is never changed."""

import logging
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from potluck_app.chats.values import Conversation, Message, Stats, Status, new_id

logger = logging.getLogger(__name__)


class _FormerMessage(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant"]
    text: str
    status: Status = "done"
    error: str | None = None
    stats: Stats | None = None


class _FormerConversation(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    updated: float
    messages: tuple[_FormerMessage, ...] = ()


def conversations(folder: Path, known: Container[str]) -> Iterator[tuple[str, Conversation]]:
    """Read each file whose name is not known, and yield its name and its conversation.

    A file that cannot be read is skipped. It may be read by a later version.
    """
    for path in sorted(folder.glob("*.json")):
        if path.name in known:
            continue
        try:
            former = msgspec.json.decode(path.read_bytes(), type=_FormerConversation)
            if former.id != path.stem or not former.id.isalnum():
                continue
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a conversation cannot be read file=%s: %s", path.name, error)
            continue
        yield path.name, _chained(former)


def _chained(former: _FormerConversation) -> Conversation:
    """Return the conversation with each message below the one before it."""
    messages: list[Message] = []
    parent: str | None = None
    for old in former.messages:
        # A reply that was incomplete when the program ended is not continued.
        status = "stopped" if old.status == "streaming" else old.status
        message = Message(
            id=new_id(),
            parent=parent,
            role=old.role,
            text=old.text,
            status=status,
            error=old.error,
            stats=old.stats,
        )
        messages.append(message)
        parent = message.id
    return Conversation(
        id=former.id,
        title=former.title,
        updated=former.updated,
        leaf=parent,
        messages=tuple(messages),
    )
