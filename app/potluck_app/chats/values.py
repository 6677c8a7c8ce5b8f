"""The values of conversations. Without Qt and without I/O.

A conversation is a tree of messages: who edits a message or asks for another reply adds a version
beside the old one. What is shown is one path through the tree, from its first message to a leaf.
"""

import re
import secrets
from typing import Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["user", "assistant"]
Status: TypeAlias = Literal["done", "streaming", "stopped", "failed"]

_TITLE_LENGTH = 60
_ID_LENGTH = 16  # hex characters: 64 bits, enough to avoid equal ids


class Stats(Struct, frozen=True, kw_only=True):
    """The figures of one reply: those of the node, or if it was stopped, those of the window."""

    tokens: int
    tokens_per_s: float
    time_to_first_token_s: float  # of reading the prompt: loading is not in it
    prompt_tokens: int = 0
    model: str | None = None
    loading_s: float = 0.0  # time before, in which the model was loaded


class Attachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that belongs to a message: a text, or a picture."""

    name: str
    text: str = ""
    picture: str = ""  # the bytes of its file in base64; empty: it is a text

    @property
    def nbytes(self) -> int:
        """Bytes of the file, about."""
        return len(self.picture) * 3 // 4 or len(self.text.encode("utf-8", "replace"))


class Message(Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Role
    text: str
    id: str = ""
    parent: str | None = None  # the message before it; None: it is the first one
    status: Status = "done"
    error: str | None = None  # a sentence, with `failed`
    code: str | None = None  # the code of that error, as in `potluck.errors`
    stats: Stats | None = None
    attachments: tuple[Attachment, ...] = ()
    cut: bool = False  # it ends in the middle: it had its most tokens, or more of it is awaited


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a conversation is answered. None: as the model recommends, or as it is loaded."""

    system: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    context: int | None = None  # tokens that are sent at most, with the reply


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was written or attached, and not sent."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class Summary(Struct, frozen=True, kw_only=True):
    """The part of a conversation that the list shows."""

    id: str
    title: str
    updated: float  # time of its last message, in seconds since 1970
    pinned: bool = False


class Conversation(Summary, frozen=True, kw_only=True):
    """A conversation.

    Attributes:
        messages: of all versions, each after its parent; versions in the order they were made.
        leaf: the last message of the path that is shown; None: the newest one.
    """

    messages: tuple[Message, ...] = ()
    leaf: str | None = None
    settings: Settings = Settings()


class Hit(Struct, frozen=True, kw_only=True):
    """One result of a search: a message, or a conversation by its title."""

    chat: str
    title: str
    message: str | None = None
    excerpt: str = ""  # one line around the words that were found


class Preset(Struct, frozen=True, kw_only=True):
    """Settings with a name."""

    name: str
    settings: Settings


def new_id() -> str:
    """Return a new id for a conversation or a message."""
    return secrets.token_hex(_ID_LENGTH // 2)


def title_of(first_message: str) -> str:
    """Return the title of a conversation, made from its first message."""
    line = " ".join(first_message.split())
    if len(line) <= _TITLE_LENGTH:
        return line or "New chat"
    return line[:_TITLE_LENGTH].rsplit(" ", 1)[0].rstrip(",.;:") + "…"


def prompt_text(message: Message) -> str:
    """Return what the model reads: the message, and then each attached file in a fence."""
    parts = [message.text] if message.text else []
    for attachment in message.attachments:
        if attachment.picture:
            continue  # it goes beside the text
        longest = max((len(run) for run in re.findall("`+", attachment.text)), default=0)
        fence = "`" * max(3, longest + 1)
        parts.append(f"{attachment.name}:\n{fence}\n{attachment.text.rstrip()}\n{fence}")
    return "\n\n".join(parts)
