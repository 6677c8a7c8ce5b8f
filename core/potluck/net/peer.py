"""The identity of the peer of a TLS connection, from its certificate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from potluck.errors import UntrustedPeerError
from potluck.ids import HomeId, NodeId, Role
from potluck.wire import certificates
from potluck.wire.certificates import tls_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The identity of the peer of a TLS connection, from the certificate that its home issued."""

    node_id: NodeId
    role: Role
    home: HomeId


def peer_identity(shown: Mapping[str, object], home_id: HomeId) -> PeerIdentity:
    """Read the result of `getpeercert`: nested tuples, already verified by OpenSSL."""
    names = cast("tuple[tuple[str, str], ...]", shown.get("subjectAltName", ()))
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", shown.get("subject", ()))
    roles = [v for rdn in subject for k, v in rdn if k == "organizationalUnitName"]
    match names, roles:
        case (("DNS", name),), ["master" | "worker" as role]:
            pass
        case _:
            raise UntrustedPeerError("A certificate of this home is not one that Potluck issues.")
    try:
        node_id = certificates.node_of_label(name.partition(".")[0])
    except ValueError as error:
        raise UntrustedPeerError("A certificate of this home does not name a computer.") from error
    if name != tls_name(node_id, home_id):
        raise UntrustedPeerError("A certificate of this home names another home.")
    return PeerIdentity(node_id=node_id, role=role, home=home_id)
