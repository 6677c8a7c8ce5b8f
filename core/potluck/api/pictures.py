"""The pictures in requests: their bytes come with the request, and are decoded elsewhere. Pure.

Clients send them as `data:` addresses or as base64. An address of another kind is refused: nobody but the person at this
computer says what it fetches, or which of its files it reads.
"""

import base64
import binascii

from potluck.api.openai import UnsupportedParameterError
from potluck.api.prompts import GivenPicture

MOST_PICTURES = 64  # of one request


def picture_at(url: str, at: int, where: str) -> GivenPicture:
    """The picture of a `data:` address, before a character of its message's text.

    Raises:
        UnsupportedParameterError: it is another kind of address, or damaged; the error names `where`.
    """
    head, comma, data = url.partition(",")
    kind = head.lower()
    if not kind.startswith("data:"):
        raise UnsupportedParameterError(
            where,
            f"{where}: Potluck fetches no pictures and opens no files for programs. Send the picture itself, as"
            " data:image/png;base64,… (or jpeg, webp, gif).",
        )
    if not comma or not kind.endswith(";base64"):
        raise UnsupportedParameterError(
            where, f"{where}: the picture must be in base64: data:image/png;base64,…"
        )
    return picture_of(data, at, where)


def picture_of(data: str, at: int, where: str) -> GivenPicture:
    """The picture of base64, before a character of its message's text.

    Raises:
        UnsupportedParameterError: it is damaged; the error names `where`.
    """
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise UnsupportedParameterError(
            where, f"{where}: the picture is empty, or its base64 is damaged."
        )
    return GivenPicture(data=found, at=at)


def check_count(pictures: int, where: str) -> None:
    """Raise UnsupportedParameterError for more pictures than a request may have."""
    if pictures > MOST_PICTURES:
        raise UnsupportedParameterError(
            where, f"{where}: {pictures} pictures are more than the {MOST_PICTURES} of one request."
        )
