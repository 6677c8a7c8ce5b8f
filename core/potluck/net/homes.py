"""Reads and writes the files of a node's keys and homes, and checks every file that it reads."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from potluck.errors import IdentityError, PairingError
from potluck.files import write_atomically
from potluck.ids import HomeId, NodeId, Role, is_digest
from potluck.wire import certificates

MAX_NAME = 128  # the same limit as on the wire

CA_FILE, MEMBER_FILE, HOME_FILE, REVOKED_FILE = "ca.pem", "member.pem", "home.json", "revoked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A home that this node belongs to."""

    home_id: HomeId
    name: str
    master: NodeId
    role: Role  # of this node in the home
    ca_pem: bytes
    certificate_pem: bytes
    revoked: frozenset[NodeId]


def read_home(folder: Path, node_id: NodeId) -> Home:
    """Read the home that this node joined.

    Raises:
        IdentityError: a file is missing or damaged, or the files do not fit together.
    """
    authority = read_certificate(folder / CA_FILE)
    member = read_certificate(folder / MEMBER_FILE)
    match _read_json(folder / HOME_FILE):
        case {"name": str(name), "master": str(master)} if is_digest(master):
            pass
        case _:
            raise damaged(folder / HOME_FILE, "it does not say what the home is")
    role: Role = "master" if master == node_id else "worker"
    try:
        certificates.check_member(authority, member, node_id, role)
    except PairingError as error:
        raise damaged(folder / MEMBER_FILE, error.message) from error
    home_id = HomeId(certificates.public_key_digest(authority))
    if home_id != folder.name:
        raise damaged(folder / CA_FILE, "it is of another home")
    return Home(
        home_id=home_id,
        name=name,
        master=NodeId(master),
        role=role,
        ca_pem=certificates.to_pem(authority),
        certificate_pem=certificates.to_pem(member),
        revoked=_read_revoked(folder / REVOKED_FILE),
    )


def write_home(
    folder: Path, authority: x509.Certificate, member: x509.Certificate, name: str, master: NodeId
) -> None:
    """Write a home's files. `home.json` is written last: without it, the home does not count."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(folder / CA_FILE, certificates.to_pem(authority))
    write_atomically(folder / MEMBER_FILE, certificates.to_pem(member))
    about = json.dumps({"name": name[:MAX_NAME], "master": master})
    write_atomically(folder / HOME_FILE, about.encode())


def write_revoked(folder: Path, revoked: Iterable[NodeId]) -> None:
    """Replace the list of nodes that the home no longer trusts."""
    write_atomically(folder / REVOKED_FILE, json.dumps(sorted(revoked)).encode())


def remove_home(folder: Path) -> None:
    """Remove a home's files, `home.json` first: files that remain without it are harmless."""
    (folder / HOME_FILE).unlink(missing_ok=True)
    with suppress(OSError):  # a temporary file of a crash, or on Windows an open file
        for name in (MEMBER_FILE, CA_FILE, REVOKED_FILE):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key; IdentityError if it is missing or not a P-256 key."""
    try:
        return certificates.key_from_pem(path.read_bytes())
    except FileNotFoundError as error:
        raise IdentityError(
            f"The private key {path} is missing. Restore it from a backup; or, to begin as a new"
            f" computer that has to be paired again, remove the folder {path.parent}.",
            path=str(path),
        ) from error
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise damaged(path, "it is not a private key of ours") from error


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; IdentityError if the file is missing or not a certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, "it is not a readable certificate") from error


def _read_revoked(path: Path) -> frozenset[NodeId]:
    if not path.exists():
        return frozenset()
    listed = _read_json(path)
    if not isinstance(listed, list):
        raise damaged(path, "it is not a list of node ids")
    node_ids = cast("list[object]", listed)
    return frozenset(NodeId(n) for n in node_ids if isinstance(n, str) and is_digest(n))


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, "it is not readable JSON") from error


def damaged(path: Path, reason: str) -> IdentityError:
    """The error for a file that exists but cannot be used."""
    return IdentityError(
        f"The file {path} cannot be used: {reason}. Restore it from a backup, or remove it"
        " and pair again.",
        path=str(path),
    )
