"""Tokens: everything that a headless computer needs to join a home, in one line to paste.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from potluck.errors import PairingError
from potluck.ids import HomeId, NodeId
from potluck.wire.messages import Address

INVITE_LIFETIME_S: Final = 3600.0  # time to walk to the other computer, but not to keep it
MAX_INVITES: Final = 64  # open at once; a new one replaces the oldest

_PREFIX: Final = "potluck-"
_VERSION: Final = 1
_MAX_ADDRESSES: Final = 3  # keeps the line under 200 characters
_MAX_CHARACTERS: Final = 512
_HOME_BYTES: Final = 16
_SECRET_BYTES: Final = 16
_CHECK_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingToken:
    """The content of a token."""

    home: bytes  # the first half of the home's id
    secret: bytes = field(repr=False)
    addresses: tuple[Address, ...]  # where the master was when it made the token

    @property
    def invite(self) -> bytes:
        """The token's public name: it identifies the secret, and reveals nothing of it."""
        return hashlib.sha256(b"potluck invite" + self.secret).digest()[:16]

    def is_of(self, home_id: HomeId) -> bool:
        """Whether the token belongs to this home."""
        return bytes.fromhex(home_id)[:_HOME_BYTES] == self.home

    def __str__(self) -> str:
        body = bytes([_VERSION]) + self.home + self.secret + bytes([len(self.addresses)])
        for address in self.addresses:
            ip = ipaddress.ip_address(address.host)
            body += bytes([ip.version]) + ip.packed + address.port.to_bytes(2, "big")
        text = base64.b32encode(body + _check(body)).decode().rstrip("=").lower()
        return _PREFIX + text

    @classmethod
    def parse(cls, text: str) -> "PairingToken":
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
            return cls._read(body)
        except (ValueError, IndexError) as error:
            raise _unreadable("What it says makes no sense.") from error

    @classmethod
    def _read(cls, body: bytes) -> "PairingToken":
        middle = 1 + _HOME_BYTES
        end = middle + _SECRET_BYTES
        home, secret, count, rest = body[1:middle], body[middle:end], body[end], body[end + 1 :]
        addresses: list[Address] = []
        for _ in range(count):
            length = {4: 4, 6: 16}.get(rest[0], -1)
            host, port = rest[1 : 1 + length], int.from_bytes(rest[1 + length : 3 + length], "big")
            if length < 0 or not port:
                raise ValueError("no address")
            addresses.append(Address(host=str(ipaddress.ip_address(host)), port=port))
            rest = rest[3 + length :]
        if rest or count > _MAX_ADDRESSES:
            raise ValueError("left over")
        return cls(home=home, secret=secret, addresses=tuple(addresses))


class Invites:
    """The tokens that a master has issued and that are not used yet."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        # public name -> token, end of its validity, who alone may use it
        self._open: dict[bytes, tuple[PairingToken, float, NodeId | None]] = {}

    def create(
        self,
        home_id: HomeId,
        addresses: Sequence[Address],
        *,
        now: float,
        only: NodeId | None = None,
    ) -> PairingToken:
        """Create a token of the home. Host names and addresses with a zone are left out.

        Args:
            home_id: of this computer's own home.
            addresses: where this computer is.
            now: monotonic time, in seconds.
            only: the one computer that can use it, in place of its token before; None: any.
        """
        if only is not None:
            self._open = {n: each for n, each in self._open.items() if each[2] != only}
        plain = [a for a in addresses if _is_plain(a.host)]
        token = PairingToken(
            home=bytes.fromhex(home_id)[:_HOME_BYTES],
            secret=self._random(_SECRET_BYTES),
            addresses=tuple(plain[:_MAX_ADDRESSES]),
        )
        while len(self._open) >= MAX_INVITES:
            del self._open[next(iter(self._open))]
        self._open[token.invite] = (token, now + INVITE_LIFETIME_S, only)
        return token

    def secret(self, invite: bytes, *, now: float) -> bytes | None:
        """The secret of an open token; None if it is used, has expired or was never issued."""
        token, until, _ = self._open.get(invite, (None, 0.0, None))
        return token.secret if token is not None and now < until else None

    def only(self, invite: bytes) -> NodeId | None:
        """The one computer that can use a token; None: any, or the token is not open."""
        entry = self._open.get(invite)
        return entry[2] if entry is not None else None

    def use(self, invite: bytes, *, now: float) -> bool:
        """Use up a token. Returns whether it was still open."""
        is_open = self.secret(invite, now=now) is not None
        self._open.pop(invite, None)
        return is_open


def _is_plain(host: str) -> bool:
    """Whether a host is an IP address that needs no zone: a zone is valid on one computer only."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (ip.version == 6 and ip.is_link_local)


def _check(body: bytes) -> bytes:
    return hashlib.sha256(b"potluck token" + body).digest()[:_CHECK_BYTES]


def _unreadable(why: str) -> PairingError:
    return PairingError(
        f"This is not a usable token. {why} `potluck invite` on the main computer prints a new one.",
        kind="token",
    )
