"""The pictures in requests: they are decoded elsewhere. Pure.

Clients send them as `data:` addresses or as base64. Those with an address on the Internet are fetched where the user
allows it (`potluck.api.v1.addressed`). Any other address is refused: no program says which of this computer's files it reads.
"""

import base64
import binascii

from potluck.api.prompts import GivenPicture
from potluck.api.v1.request_shapes import UnsupportedParameterError

MOST_PICTURES = 64  # of one request
_LONGEST_ADDRESS = 8192  # characters; browsers send no more


def picture_at(url: str, at: int, where: str) -> GivenPicture:
    """The picture of a `data:` or web address, before a character of its message's text.

    Raises:
        UnsupportedParameterError: it is another kind of address, or damaged; the error names `where`.
    """
    head, comma, data = url.partition(",")
    kind = head.lower()
    if kind.startswith(("http://", "https://")):
        if len(url) > _LONGEST_ADDRESS:
            raise UnsupportedParameterError(
                where, f"{where}: an address has at most {_LONGEST_ADDRESS} characters."
            )
        return GivenPicture(at=at, address=url, field=where)
    if not kind.startswith("data:"):
        raise UnsupportedParameterError(
            where,
            f"{where}: Potluck opens no files for programs. Send the picture itself, as"
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
