"""Signed documents: DSSE (github.com/secure-systems-lab/dsse, version 1) with Ed25519.

What is signed is the type of the document and its bytes, so that a signature holds for one kind of document only, and
nothing of it is parsed before the signature was checked.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta

from potluck.errors import IntegrityError

RELEASE_TYPE: Final = "application/vnd.potluck.release+json"
MOST_BYTES: Final = 256 << 10  # of an envelope; ten packages take 4 kB
_MOST_SIGNATURES: Final = 8  # an old key and a new one, while keys change


class Signature(msgspec.Struct, frozen=True):
    """One of an envelope. `keyid` names the key; nothing is decided by it."""

    sig: Annotated[str, Meta(max_length=128)]
    keyid: Annotated[str, Meta(max_length=128)] = ""


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A document in base64, its type, and who has signed both. `installers/sealing.py` makes one."""

    payload: str
    payload_type: str
    signatures: Annotated[tuple[Signature, ...], Meta(max_length=_MOST_SIGNATURES)]


def unseal(envelope: bytes, payload_type: str, keys: Sequence[str]) -> bytes:
    """The document in an envelope, if one of these keys has signed it.

    Args:
        envelope: as it came.
        payload_type: the only kind of document that is taken.
        keys: Ed25519 public keys, 32 bytes in base64.

    Raises:
        IntegrityError: it is damaged, of another kind, or signed by nobody who is trusted.
    """
    if len(envelope) > MOST_BYTES:
        raise _bad("is too large")
    try:
        read = msgspec.json.decode(envelope, type=Envelope)
        payload = base64.b64decode(read.payload, validate=True)
        signatures = [base64.b64decode(each.sig, validate=True) for each in read.signatures]
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise _bad("is damaged") from error
    if read.payload_type != payload_type:
        raise _bad("is another document")
    signed = signed_bytes(payload_type, payload)
    if not any(_holds(key, each, signed) for key in map(public_key, keys) for each in signatures):
        raise _bad("is not signed by the makers of Potluck")
    return payload


def public_key(text: str) -> Ed25519PublicKey:
    """A key as packages have it: 32 bytes in base64.

    Raises:
        IntegrityError: it is none.
    """
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise IntegrityError(
            "The key of releases that this package has is none. Install Potluck again."
        ) from error


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b" ".join((b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload))


def _holds(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _bad(what: str) -> IntegrityError:
    return IntegrityError(
        f"The list of the newest release {what}. It is not used, and nothing was changed. Try again later."
    )
