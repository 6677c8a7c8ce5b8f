"""The values of the local API for pairing, by sight and by token. Pure."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Address = Annotated[str, Meta(min_length=1, max_length=261)]  # host[:port]; the host: 255 at most
Token = Annotated[str, Meta(min_length=1, max_length=4096)]

PairingState: TypeAlias = Literal[
    "asking",  # the other side has not answered; there are no digits yet
    "confirm",  # the digits are known; this side has to accept or refuse
    "accepted",  # this side has accepted and waits for the other
    "paired",
    "refused",  # one of the two sides refused
    "failed",  # timeout, broken connection or a man-in-the-middle attack; see `message`
]


class Pairing(Struct, frozen=True, kw_only=True):
    """A pairing by sight, as this side sees it."""

    id: str
    node_id: str  # of the other side
    name: str  # of the other side
    role: Literal["master", "worker"]  # what this side will be
    state: PairingState
    code: str | None = None  # the six digits
    message: str | None = None  # why the pairing failed


class PairingRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/pairings, answered by `Pairing`."""

    target: Address  # node id, name, or host[:port]


class PairingDecision(Struct, frozen=True, kw_only=True):
    """POST /cluster/pairings/{id}, answered by `Pairing`. Both sides have to decide."""

    accept: bool


class Invite(Struct, frozen=True, kw_only=True):
    """The answer to POST /cluster/invites."""

    token: str
    expires_s: float


class JoinRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/join, answered by `Joined`."""

    token: Token


class Joined(Struct, frozen=True, kw_only=True):
    home_id: str
    name: str  # of the home's master
