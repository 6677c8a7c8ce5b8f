"""What an invitation says: the bytes of a token. Pure, and for the window, too.

    potluck-<base32, lower case, no padding>
       1 byte    version, 1
      16 bytes   the home: the first half of its authority's SHA-256
      16 bytes   secret, used once
       1 byte    how many addresses, at most 3
       per address: 1 byte 4 or 6, the IP address, 2 bytes port
       4 bytes   the start of the SHA-256 of all bytes before them: finds a typo without the network

Only the secret keeps strangers out: a token is shown once and never logged.
"""

import base64
import binascii
import hashlib
import ipaddress
from dataclasses import dataclass, field
from typing import Final

from potluck.errors import PairingError

HOME_BYTES: Final = 16
SECRET_BYTES: Final = 16
MAX_ADDRESSES: Final = 3  # keeps the line under 200 characters

_PREFIX: Final = "potluck-"
_VERSION: Final = 1
_MAX_CHARACTERS: Final = 512
_CHECK_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the bytes of a token say."""

    home: bytes
    secret: bytes = field(repr=False)
    addresses: tuple[tuple[str, int], ...]  # IP address, port


def write(contents: Contents) -> str:
    """Write a token."""
    count = bytes([len(contents.addresses)])
    body = bytes([_VERSION]) + contents.home + contents.secret + count
    for host, port in contents.addresses:
        ip = ipaddress.ip_address(host)
        body += bytes([ip.version]) + ip.packed + port.to_bytes(2, "big")
    text = base64.b32encode(body + _check(body)).decode().rstrip("=").lower()
    return _PREFIX + text


def read(text: str) -> Contents:
    """Read a token as a person pasted it.

    Raises:
        PairingError: the text is not a token, or was not copied whole.
    """
    text = "".join(text.split()).lower()
    if not text.startswith(_PREFIX) or len(text) > _MAX_CHARACTERS:
        raise _unreadable("It does not begin with `potluck-`.")
    encoded = text.removeprefix(_PREFIX).upper()
    try:
        data = base64.b32decode(encoded + "=" * (-len(encoded) % 8))
    except (binascii.Error, ValueError) as error:
        raise _unreadable("It was not copied whole, or has a typing error.") from error
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if not body or _check(body) != check:
        raise _unreadable("It was not copied whole, or has a typing error.")
    if body[0] != _VERSION:
        raise _unreadable("It was made by a newer Potluck: update Potluck on this computer.")
    try:
        return _read(body)
    except (ValueError, IndexError) as error:
        raise _unreadable("What it says makes no sense.") from error


def _read(body: bytes) -> Contents:
    middle = 1 + HOME_BYTES
    end = middle + SECRET_BYTES
    home, secret, count, rest = body[1:middle], body[middle:end], body[end], body[end + 1 :]
    addresses: list[tuple[str, int]] = []
    for _ in range(count):
        length = {4: 4, 6: 16}.get(rest[0], -1)
        host, port = rest[1 : 1 + length], int.from_bytes(rest[1 + length : 3 + length], "big")
        if length < 0 or not port:
            raise ValueError("no address")
        addresses.append((str(ipaddress.ip_address(host)), port))
        rest = rest[3 + length :]
    if rest or count > MAX_ADDRESSES:
        raise ValueError("left over")
    return Contents(home=home, secret=secret, addresses=tuple(addresses))


def _check(body: bytes) -> bytes:
    return hashlib.sha256(b"potluck token" + body).digest()[:_CHECK_BYTES]


def _unreadable(why: str) -> PairingError:
    return PairingError(
        f"This is not a usable token. {why} `potluck invite` on the main computer prints a new one.",
        kind="token",
    )
