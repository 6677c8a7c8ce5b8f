"""The computer that a person or a token names, among those that were found."""

from collections.abc import Sequence

from potluck.errors import NotFoundError, UsageError
from potluck.net.advert import Found, parse_address
from potluck.net.listener import DEFAULT_PORT
from potluck.wire.messages import Address
from potluck.wire.token import PairingToken


def addresses_of(words: str, peers: Sequence[Found]) -> Sequence[Address]:
    """Where the computer is that these words name, or the address that they are.

    Raises:
        UsageError: several computers have that name.
        NotFoundError: none has it, and it is no address.
    """
    if (found := named(words, peers)) is not None:
        return found.addresses
    if not any(sign in words for sign in ".:"):
        here = ", ".join(peer.name for peer in peers) or "none"
        raise NotFoundError(
            f"No computer called {words} was found. Found are: {here}. Start Potluck there and"
            " share it, or give its address."
        )
    return (parse_address(words, default_port=DEFAULT_PORT),)


def named(words: str, peers: Sequence[Found]) -> Found | None:
    """The computer that a user's text names: by node id, name, or beginning of a node id.

    Raises:
        UsageError: several computers have that name.
    """
    wanted = words.casefold()
    matches = [f for f in peers if wanted in (f.node_id, f.name.casefold())]
    matches = matches or [f for f in peers if len(wanted) >= 8 and f.node_id.startswith(wanted)]
    if len(matches) > 1:
        ids = ", ".join(f.node_id[:8] for f in matches)
        raise UsageError(f"Several computers are called {words}. Use one of their ids: {ids}.")
    return matches[0] if matches else None


def homes_addresses(token: PairingToken, peers: Sequence[Found]) -> Sequence[Address]:
    """Where the computers of a token's home were found; the token has addresses of its own, too."""
    homes = (found for found in peers if found.home is not None and token.is_of(found.home))
    return [address for found in homes for address in found.addresses]
