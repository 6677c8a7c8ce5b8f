"""Makes the envelopes that `potluck.update.envelope` reads: DSSE with Ed25519. Only releases and tests need this half."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "core"))

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from potluck.update.envelope import Envelope, Signature, signed_bytes


def seal(payload: bytes, payload_type: str, *keys: Ed25519PrivateKey) -> bytes:
    """The envelope of a document, with a signature by each key."""
    signed = signed_bytes(payload_type, payload)
    signatures = (Signature(text(key.sign(signed)), key_id(key.public_key())) for key in keys)
    envelope = Envelope(
        payload=text(payload), payload_type=payload_type, signatures=tuple(signatures)
    )
    return msgspec.json.encode(envelope)


def private_key(written: str) -> Ed25519PrivateKey:
    """A key as the release has it: 32 bytes in base64.

    Raises:
        ValueError: it is none.
    """
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(written, validate=True))


def key_text(key: Ed25519PublicKey) -> str:
    """A public key as packages have it."""
    return text(key.public_bytes_raw())


def key_id(key: Ed25519PublicKey) -> str:
    """What names a key in an envelope."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def text(data: bytes) -> str:
    """Bytes in base64."""
    return base64.b64encode(data).decode()
