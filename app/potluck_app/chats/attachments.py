"""Read text files that are attached to a message. Without Qt."""

from collections.abc import Sequence
from pathlib import Path

from potluck.reasons import reason
from potluck_app.chats.values import Attachment

MAX_BYTES = 512 << 10  # of one file: some 150,000 tokens, which few models take
MAX_FILES = 20  # of one message

_PICTURES = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".heic", ".tif", ".tiff"))
_OFFICE = frozenset((".pdf", ".docx", ".xlsx", ".pptx", ".odt", ".ods"))
_TEXT_ENCODINGS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"))


class AttachmentError(Exception):
    """A file cannot be attached. The message is a sentence for the person."""


def attach(
    paths: Sequence[Path], attached: Sequence[Attachment]
) -> tuple[list[Attachment], list[str]]:
    """Read files.

    Args:
        paths: of the files.
        attached: what the message has already.

    Returns:
        The files that could be read, and a sentence for each of the others.
    """
    read: list[Attachment] = []
    troubles: list[str] = []
    for path in paths:
        try:
            if len(attached) + len(read) >= MAX_FILES:
                raise AttachmentError(
                    f"A message takes {MAX_FILES} files; {path.name} is too many."
                )
            read.append(read_attachment(path))
        except AttachmentError as error:
            troubles.append(str(error))
    return read, troubles


def read_attachment(path: Path) -> Attachment:
    """Read one file.

    Raises:
        AttachmentError: it is no text, too large, or cannot be read.
    """
    name, kind = path.name, path.suffix.casefold()
    if kind in _PICTURES:
        raise AttachmentError(f"{name} is a picture. Potluck reads text files only, so far.")
    if kind in _OFFICE:
        raise AttachmentError(f"{name} is no plain text. Copy its text, or save it as text first.")
    try:
        if not path.is_file():
            raise AttachmentError(f"{name} is no file. Choose the files in it one by one.")
        nbytes = path.stat().st_size
        if nbytes > MAX_BYTES:
            raise AttachmentError(
                f"{name} has {size(nbytes)}, and a file may have {size(MAX_BYTES)}."
                " Attach the part that matters."
            )
        data = path.read_bytes()
    except OSError as error:
        raise AttachmentError(f"{name} could not be read: {reason(error)}.") from error
    return Attachment(name=name, text=_decoded(name, data))


def _decoded(name: str, data: bytes) -> str:
    encoding = next(encoding for mark, encoding in _TEXT_ENCODINGS if data.startswith(mark))
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachmentError(f"{name} is no text in UTF-8. Potluck reads text files only, so far.")
    return text.replace("\r\n", "\n")


def size(nbytes: int) -> str:
    """Return a size of a file: `340 kB`, `1.2 MB`."""
    return f"{max(nbytes / 1e3, 1):.0f} kB" if nbytes < 999_500 else f"{nbytes / 1e6:.1f} MB"
