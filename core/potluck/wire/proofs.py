"""The cryptography of pairing: one hash of everything that both sides saw, and proofs over it.

The transcript contains everything that either side said or saw, each field with its length and each
side under its role. Two computers have the same transcript only if nothing between them changed a
bit. A proof of one role is not valid for the other. A signature over the transcript proves
possession of a key; an HMAC over it proves knowledge of a token's secret.
"""

import hashlib
import hmac
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from potluck.errors import PairingError
from potluck.ids import HomeId, NodeId, Role
from potluck.wire import certificates

_LABEL: Final = b"potluck pairing"
_CODE_DIGITS: Final = 6


class ProofError(Exception):
    """A proof is not valid. Never leaves `wire`: the pairing machines turn it into an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known about one side once its nonce is known."""

    name: str
    certificate: bytes  # DER, from TLS or from a message
    nonce: bytes


def commit(nonce: bytes) -> bytes:
    """A commitment: it fixes a nonce without revealing it."""
    return _hash(b"commitment", nonce)


def transcript(
    method: str, offered: Sequence[int], version: int, master: Seen, worker: Seen, *extra: bytes
) -> bytes:
    """The hash of everything that was said. `extra`: further fields of one way of pairing."""
    return _hash(
        method.encode(),
        ",".join(map(str, offered)).encode(),
        str(version).encode(),
        b"master",
        *(master.name.encode(), master.certificate, master.nonce),
        b"worker",
        *(worker.name.encode(), worker.certificate, worker.nonce),
        *extra,
    )


def short_code(seen: bytes) -> str:
    """Six digits of a transcript, for two people to compare: `427 918`."""
    number = int.from_bytes(_hash(b"code", seen)[:16], "big") % 10**_CODE_DIGITS
    digits = f"{number:0{_CODE_DIGITS}}"
    return f"{digits[:3]} {digits[3:]}"


def to_sign(role: Role, seen: bytes) -> bytes:
    """The bytes that a side signs. Their prefix differs from everything that TLS or X.509 signs."""
    return _LABEL + b" key of the " + role.encode() + b"\0" + seen


def check_signature(certificate: bytes, role: Role, seen: bytes, signature: bytes) -> None:
    """Check that the holder of this certificate's key took part in this pairing, in this role."""
    try:
        key(certificate).verify(signature, to_sign(role, seen), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise ProofError("the signature is not of that key") from error


def secret_proof(secret: bytes, role: Role, seen: bytes) -> bytes:
    """The proof of a role, over this transcript, that it knows the token's secret."""
    return hmac.digest(secret, _LABEL + b" secret of the " + role.encode() + b"\0" + seen, "sha256")


def check_secret(secret: bytes, role: Role, seen: bytes, proof: bytes) -> None:
    """Check a `secret_proof`, in constant time."""
    if not hmac.compare_digest(secret_proof(secret, role, seen), proof):
        raise ProofError("the proof is not of that secret")


def check_master(authority: bytes, certificate: bytes, shown: bytes) -> None:
    """Check that the authority issued this certificate for a master with the key that it showed."""
    with _as_proof():
        issuer, member = map(certificates.peer_certificate, (authority, certificate))
        certificates.check_member(issuer, member, node_id(shown), "master")


def node_id(certificate: bytes) -> NodeId:
    """The id of the node, or of the home, that a certificate belongs to."""
    return NodeId(_key_digest(certificate))


def home_id(authority: bytes) -> HomeId:
    """The id of the home with this authority certificate."""
    return HomeId(_key_digest(authority))


def key(certificate: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a certificate, which must be on P-256."""
    with _as_proof():
        return certificates.public_key(certificates.peer_certificate(certificate))


def _key_digest(certificate: bytes) -> str:
    with _as_proof():
        return certificates.public_key_digest(certificates.peer_certificate(certificate))


@contextmanager
def _as_proof() -> Generator[None, None, None]:
    try:
        yield
    except PairingError as error:
        raise ProofError(str(error)) from error


def _hash(*fields: bytes) -> bytes:
    """SHA-256 over fields with their lengths, so that field boundaries are unambiguous."""
    digest = hashlib.sha256(_LABEL)
    for field in fields:
        digest.update(len(field).to_bytes(4, "big"))
        digest.update(field)
    return digest.digest()
