"""Tokens: everything that a headless computer needs to join a home, in one line to paste.

`potluck.invitation` has the bytes. Only the secret keeps strangers out: a token is shown once and never logged.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from potluck import invitation
from potluck.ids import HomeId, NodeId
from potluck.invitation import HOME_BYTES, MAX_ADDRESSES, SECRET_BYTES
from potluck.wire.messages import Address

INVITE_LIFETIME_S: Final = 3600.0  # time to walk to the other computer, but not to keep it
MAX_INVITES: Final = 64  # open at once; a new one replaces the oldest


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
        return bytes.fromhex(home_id)[:HOME_BYTES] == self.home

    def __str__(self) -> str:
        addresses = tuple((address.host, address.port) for address in self.addresses)
        contents = invitation.Contents(home=self.home, secret=self.secret, addresses=addresses)
        return invitation.write(contents)

    @classmethod
    def parse(cls, text: str) -> "PairingToken":
        """Read a token as a person pasted it.

        Raises:
            PairingError: the text is not a token, or was not copied whole.
        """
        said = invitation.read(text)
        addresses = tuple(Address(host=host, port=port) for host, port in said.addresses)
        return cls(home=said.home, secret=said.secret, addresses=addresses)


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
            home=bytes.fromhex(home_id)[:HOME_BYTES],
            secret=self._random(SECRET_BYTES),
            addresses=tuple(plain[:MAX_ADDRESSES]),
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
