"""What two computers say to each other while they pair; nothing else is understood there.

A vocabulary of its own: none of these messages is known on an ordinary connection, and no ordinary
message is known here.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from potluck.wire.messages import Count, Message, Name, Port
from potluck.wire.operations import Table, table

MAX_PAIRING_HEADER: Final = 16 << 10  # bytes: two certificates and a name

Versions = Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]  # SHA-256 or HMAC of it
Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
InviteId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Certificate = Annotated[bytes, Meta(min_length=1, max_length=4096)]  # ours have some 600 bytes
Signature = Annotated[bytes, Meta(min_length=1, max_length=128)]  # ECDSA P-256 in DER: 72 at most
Refusal = Literal["refused", "timed_out", "tampered", "token", "version", "busy", "failed"]


# --- by sight: the master dials


class PairBegin(Message, frozen=True, tag="pair_begin"):
    """Master: I want to pair, this is me, and I have chosen my nonce already."""

    versions: Versions
    name: Name
    certificate: Certificate  # self-signed, DER
    commitment: Hash


class PairNonce(Message, frozen=True, tag="pair_nonce"):
    """Worker: my nonce, chosen without knowing yours."""

    version: Count
    name: Name
    nonce: Nonce


class PairReveal(Message, frozen=True, tag="pair_reveal"):
    """Master: the nonce that I had chosen, and a proof that the key is mine."""

    nonce: Nonce
    signature: Signature


class PairProof(Message, frozen=True, tag="pair_proof"):
    """Worker: a proof that the key is mine."""

    signature: Signature


class PairAccept(Message, frozen=True, tag="pair_accept"):
    """Either: the person at this computer saw the same digits and agrees."""


# --- by token: the worker dials


class PairJoin(Message, frozen=True, tag="pair_join"):
    """Worker: I have the token with this public name."""

    versions: Versions
    name: Name
    certificate: Certificate  # self-signed, DER
    invite: InviteId
    nonce: Nonce
    port: Port  # where the worker listens: the master dials it from now on


class PairOffer(Message, frozen=True, tag="pair_offer"):
    """Master: I know the token's secret too, and belong to its home."""

    version: Count
    name: Name
    authority: Certificate  # of the home
    certificate: Certificate  # the master's, issued by the authority
    nonce: Nonce
    proof: Hash


class PairClaim(Message, frozen=True, tag="pair_claim"):
    """Worker: I know the secret, and the key is mine."""

    proof: Hash
    signature: Signature


# --- both: how it ends


class Joined(Message, frozen=True, tag="joined"):
    """Master: you belong to the home now; this is your certificate."""

    home_name: Name
    authority: Certificate
    certificate: Certificate


class PairDone(Message, frozen=True, tag="pair_done"):
    """Worker: I have stored it."""


class PairRefuse(Message, frozen=True, tag="pair_refuse"):
    """Either: nothing is paired. What a person reads is not the peer's text but our own."""

    kind: Refusal
    versions: Annotated[tuple[Count, ...], Meta(max_length=16)] = ()


PAIRING: Final[Table] = table(
    PairBegin, PairNonce, PairReveal, PairProof, PairAccept,
    PairJoin, PairOffer, PairClaim, Joined, PairDone, PairRefuse,
)  # fmt: skip
