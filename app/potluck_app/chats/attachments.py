"""Read texts and pictures that are attached to a message. Without Qt."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

from potluck.reasons import reason
from potluck_app.chats.values import Attachment

MAX_BYTES = 512 << 10  # of one file: some 150,000 tokens, which few models take
MAX_FILES = 20  # of one message

MAX_PICTURES = (
    12 << 20
)  # characters of base64, of all pictures of one message: a node takes bodies of 16 MiB
MAX_PICTURE_BYTES = 64 << 20  # of one file, before it is made small

_PICTURES = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".heic", ".tif", ".tiff"))
_OFFICE = frozenset((".pdf", ".docx", ".xlsx", ".pptx", ".odt", ".ods"))
_TEXT_ENCODINGS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"))


class AttachmentError(Exception):
    """A file cannot be attached. The message is a sentence for the person."""


Small = Callable[[bytes], bytes | None]
"""Makes a picture's file small enough to be sent; None: it is none that can be read."""


def attach(
    paths: Sequence[Path], attached: Sequence[Attachment], small: Small
) -> tuple[list[Attachment], list[str]]:
    """Read files.

    Args:
        paths: of the files.
        attached: what the message has already.
        small: for pictures.

    Returns:
        The files that could be read, and a sentence for each of the others.
    """
    read: list[Attachment] = []
    troubles: list[str] = []
    for path in paths:
        try:
            if len(attached) + len(read) >= MAX_FILES:
                raise AttachmentError(too_many(path.name))
            read.append(beside([*attached, *read], read_attachment(path, small)))
        except AttachmentError as error:
            troubles.append(str(error))
    return read, troubles


def too_many(name: str) -> str:
    """A sentence for a file that is one too many."""
    return f"A message takes {MAX_FILES} files; {name} is too many."


def beside(attached: Sequence[Attachment], one: Attachment) -> Attachment:
    """The attachment, if a message takes it beside these.

    Raises:
        AttachmentError: its pictures would be more than one message takes.
    """
    if one.picture and sum(len(each.picture) for each in (*attached, one)) > MAX_PICTURES:
        raise AttachmentError(f"A message has no room for {one.name}. Send it in the next one.")
    return one


def picture(name: str, data: bytes, small: Small) -> Attachment:
    """A picture, by the bytes of its file.

    Raises:
        AttachmentError: it cannot be read.
    """
    if (made := small(data)) is None:
        raise AttachmentError(f"{name} is no picture that can be read. Save it as PNG or JPEG.")
    return Attachment(name=name, picture=base64.b64encode(made).decode())


def read_attachment(path: Path, small: Small) -> Attachment:
    """Read one file.

    Raises:
        AttachmentError: it is no text and no picture, too large, or cannot be read.
    """
    name, kind = path.name, path.suffix.casefold()
    is_picture = kind in _PICTURES
    most = MAX_PICTURE_BYTES if is_picture else MAX_BYTES
    if kind in _OFFICE:
        raise AttachmentError(f"{name} is no plain text. Copy its text, or save it as text first.")
    try:
        if not path.is_file():
            raise AttachmentError(f"{name} is no file. Choose the files in it one by one.")
        nbytes = path.stat().st_size
        if nbytes > most:
            raise AttachmentError(
                f"{name} has {size(nbytes)}, and a file may have {size(most)}."
                " Attach the part that matters."
            )
        data = path.read_bytes()
    except OSError as error:
        raise AttachmentError(f"{name} could not be read: {reason(error)}.") from error
    if is_picture:
        return picture(name, data, small)
    return Attachment(name=name, text=_decoded(name, data))


def _decoded(name: str, data: bytes) -> str:
    encoding = next(encoding for mark, encoding in _TEXT_ENCODINGS if data.startswith(mark))
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachmentError(
            f"{name} is no text in UTF-8 and no picture. Potluck reads only these, so far."
        )
    return text.replace("\r\n", "\n")


def size(nbytes: int) -> str:
    """Return a size of a file: `340 kB`, `1.2 MB`."""
    return f"{max(nbytes / 1e3, 1):.0f} kB" if nbytes < 999_500 else f"{nbytes / 1e6:.1f} MB"
