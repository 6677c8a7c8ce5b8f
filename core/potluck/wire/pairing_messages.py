"""The messages of a pairing connection, which accepts no others.

These messages are separate: none of them is known on an ordinary connection.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from potluck.wire.fields import Count, Name, Port
from potluck.wire.messages import Message
from potluck.wire.operations import Table, table

MAX_PAIRING_HEADER: Final = 16 << 10  # bytes: three certificates and a name

Versions = Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]  # SHA-256 or HMAC-SHA-256
Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
InviteId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Certificate = Annotated[bytes, Meta(min_length=1, max_length=4096)]  # ours have about 600 bytes
Signature = Annotated[bytes, Meta(min_length=1, max_length=128)]  # ECDSA P-256 in DER: at most 72
Refusal = Literal["refused", "timed_out", "tampered", "token", "version", "busy", "failed"]


# --- by sight: the master dials


class PairBegin(Message, frozen=True, tag="pair_begin"):
    """Master: I want to pair; this is my certificate and a commitment to my nonce."""

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
    """Master: the nonce that I committed to, and a proof that the key is mine."""

    nonce: Nonce
    signature: Signature


class PairProof(Message, frozen=True, tag="pair_proof"):
    """Worker: a proof that the key is mine."""

    signature: Signature


class PairAccept(Message, frozen=True, tag="pair_accept"):
    """Either side: the person at this computer saw the same digits and agrees."""


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
    """Master: a proof that I know the token's secret and belong to its home."""

    version: Count
    name: Name
    authority: Certificate  # the home's
    certificate: Certificate  # the master's, issued by the authority
    nonce: Nonce
    proof: Hash


class PairClaim(Message, frozen=True, tag="pair_claim"):
    """Worker: a proof that I know the secret and that the key is mine."""

    proof: Hash
    signature: Signature


# --- both: the end


class Joined(Message, frozen=True, tag="joined"):
    """Master: you belong to the home now; this is your certificate. Also a membership as a value."""

    home_name: Name
    authority: Certificate  # the home's
    certificate: Certificate  # the member's
    master: Certificate  # the master's, issued by the authority: it proves whose home this is


class PairDone(Message, frozen=True, tag="pair_done"):
    """Worker: I have stored the membership."""


class PairRefuse(Message, frozen=True, tag="pair_refuse"):
    """Either side: nothing is paired. The person reads our own text for `kind`, not the peer's."""

    kind: Refusal
    versions: Annotated[tuple[Count, ...], Meta(max_length=16)] = ()


PAIRING: Final[Table] = table(
    PairBegin, PairNonce, PairReveal, PairProof, PairAccept,
    PairJoin, PairOffer, PairClaim, Joined, PairDone, PairRefuse,
)  # fmt: skip
