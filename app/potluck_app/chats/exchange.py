"""Conversations as files: Markdown to read and print, JSON with all versions. Without Qt.

Both can be imported again. In Markdown, a comment before each message says whose it is, since a
message may contain headings of its own; its pictures stand below its text, as `data:` addresses.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from potluck.files import write_atomically
from potluck.reasons import reason
from potluck_app.chats.attachments import MAX_FILES, size
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Message,
    Role,
    Settings,
    new_id,
    prompt_text,
    title_of,
)

Form: TypeAlias = Literal["md", "json"]

MAX_BYTES = 256 << 20  # hundreds of pictures; another file must not fill the memory

_MARK = re.compile(r"^<!-- potluck: (user|assistant) -->$", re.MULTILINE)
_LIKE_A_MARK = re.compile(r"^<!-- (\\*)potluck: ", re.MULTILINE)
_ESCAPED_MARK = re.compile(r"^<!-- \\(\\*)potluck: ", re.MULTILINE)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(data:image/[a-z]+;base64,([A-Za-z0-9+/]+=*)\)")
_FORMS = {"iVBOR": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}  # by how they begin
_NAMES: dict[Role, str] = {"user": "You", "assistant": "Reply"}


class ExchangeError(Exception):
    """A file could not be read or written. The message is a sentence for the person."""


class _File(Struct, frozen=True, kw_only=True):
    """The JSON file."""

    title: str
    messages: tuple[Message, ...]
    leaf: str | None = None
    settings: Settings = Settings()
    potluck_chat: int = 1  # version of this form


def export(conversation: Conversation, path: Path, form: Form) -> str:
    """Write a conversation into a file.

    Returns:
        A sentence about what was done, or why it could not be done.
    """
    text = to_markdown(conversation) if form == "md" else to_json(conversation)
    try:
        write_atomically(path, text.encode("utf-8", "replace"))
    except OSError as error:
        return f"{path} could not be written: {reason(error)}."
    return f"“{conversation.title}” was saved as {path}."


def to_markdown(conversation: Conversation) -> str:
    """Return the path that is shown, with its files, as Markdown."""
    parts = [f"# {conversation.title}"]
    for message in Tree(conversation.messages, conversation.leaf).path():
        text = _LIKE_A_MARK.sub(r"<!-- \\\1potluck: ", prompt_text(message))
        mark = f"<!-- potluck: {message.role} -->"
        pictures = (_as_line(each) for each in message.attachments if each.picture)
        body = "\n\n".join(filter(None, (text, *pictures)))
        parts.append(f"## {_NAMES[message.role]}\n\n{mark}\n{body}")
    return "\n\n".join(parts) + "\n"


def _as_line(picture: Attachment) -> str:
    """A picture in a line of Markdown."""
    name = re.sub(r"[\[\]\s]+", " ", picture.name)
    begins = (form for begin, form in _FORMS.items() if picture.picture.startswith(begin))
    return f"![{name}](data:image/{next(begins, 'png')};base64,{picture.picture})"


def to_json(conversation: Conversation) -> str:
    """Return all messages of all versions, with the settings, as JSON."""
    file = _File(
        title=conversation.title,
        messages=conversation.messages,
        leaf=conversation.leaf,
        settings=conversation.settings,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=1).decode()


def import_file(path: Path, now: float) -> Conversation:
    """Read a conversation from a file. It gets new ids.

    Args:
        path: of a JSON or a Markdown file.
        now: the time of its import, which is that of its last change.

    Raises:
        ExchangeError: it cannot be read, or holds no conversation.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ExchangeError(
                f"{path.name} has more than {size(MAX_BYTES)}; no chat is that long."
            )
        data = path.read_bytes()
    except OSError as error:
        raise ExchangeError(f"{path.name} could not be read: {reason(error)}.") from error
    try:
        text = data.decode("utf-8-sig")
        read = _from_json(text) if text.lstrip().startswith("{") else _from_markdown(text)
        return _with_new_ids(read, now)
    except ValueError as error:  # also msgspec's errors, and a tree that is none
        raise ExchangeError(
            f"{path.name} holds no chat of Potluck. Choose a file that was exported here."
        ) from error


def _from_json(text: str) -> _File:
    file = msgspec.json.decode(text, type=_File)
    if file.potluck_chat != 1:
        raise ValueError("a newer form")
    return file


def _from_markdown(text: str) -> _File:
    head, *pieces = _MARK.split(text.replace("\r\n", "\n"))
    if not pieces:
        raise ValueError("no message")
    title = next((line[2:] for line in head.splitlines() if line.startswith("# ")), "")
    messages: list[Message] = []
    for number, (role, body) in enumerate(zip(pieces[::2], pieces[1::2], strict=True)):
        if number < len(pieces) // 2 - 1:  # the heading of the next message is not of this one
            body = body.rpartition("\n## ")[0]
        text = _ESCAPED_MARK.sub(r"<!-- \1potluck: ", body).strip()
        parent = messages[-1].id if messages else None
        text, pictures = _without_pictures(text) if role == "user" else (text, ())
        messages.append(
            Message(id=str(number), parent=parent, role=role, text=text, attachments=pictures)  # pyright: ignore[reportArgumentType] - of the pattern
        )
    return _File(title=title, messages=tuple(messages))


def _without_pictures(text: str) -> tuple[str, tuple[Attachment, ...]]:
    """A message without the pictures below its text, and these."""
    pictures: list[Attachment] = []
    while len(pictures) < MAX_FILES:
        above, _, last = text.rpartition("\n")
        if (found := _PICTURE.fullmatch(last)) is None:
            break
        pictures.append(Attachment(name=found[1], picture=found[2]))
        text = above.rstrip()
    return text, tuple(reversed(pictures))


def branch(head: Conversation, path: Sequence[Message], now: float) -> Conversation:
    """Return a new conversation that begins as another one did, and goes its own way from there.

    Args:
        head: the other one; its settings are taken over.
        path: its messages up to the last one that both have.
        now: the time of the new one.
    """
    title = f"{head.title} (2)"
    file = _File(title=title, messages=tuple(path), leaf=path[-1].id, settings=head.settings)
    return _with_new_ids(file, now)


def _with_new_ids(file: _File, now: float) -> Conversation:
    Tree(file.messages)  # raises ValueError if they are no tree
    ids = {message.id: new_id() for message in file.messages}
    messages = tuple(
        msgspec.structs.replace(
            message,
            id=ids[message.id],
            parent=ids[message.parent] if message.parent is not None else None,
            status="stopped" if message.status == "streaming" else message.status,
        )
        for message in file.messages
    )
    if not messages:
        raise ValueError("no message")
    return Conversation(
        id=new_id(),
        title=title_of(file.title or messages[0].text),
        updated=now,
        messages=messages,
        leaf=ids.get(file.leaf or ""),
        settings=file.settings,
    )
