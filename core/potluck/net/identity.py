"""This node's identity: its key, its own home, the homes it joined, and the nodes they revoked.

The folder is as follows. Every file is written atomically; a private file has mode 0600 from its
first byte on.

    node.key.pem        this node's private key (ECDSA P-256)
    node.pem            its self-signed certificate, for pairing
    home.key.pem        the private key of this node's own home, once it has one
    homes/<home id>/    one folder per home joined, also for this node's own home
        ca.pem          the home's certificate
        member.pem      this node's certificate in it
        home.json       its name and its master's node id; written last: it marks the home as joined
        revoked.json    node ids that it no longer trusts

A new key is never made while any file of the old identity exists: with a new key this node would be
another computer, which every home would have to pair again.

TLS: all connections use one server context, whose SNI callback chooses the home that the client
named. OpenSSL takes the certificate and the trusted authority from the chosen context, but keeps
the *verify mode* of the first one. That mode must therefore allow connections without a
certificate, since pairing clients send none; a certificate that is sent is verified. `authenticate`
refuses a member's connection without a certificate.
"""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from weakref import WeakSet

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from potluck.errors import IdentityError, PairingError, UntrustedPeerError
from potluck.files import write_atomically
from potluck.ids import HomeId, NodeId, Role, is_digest, short
from potluck.net.homes import (
    HOME_FILE,
    MEMBER_FILE,
    Home,
    damaged,
    read_certificate,
    read_home,
    read_key,
    remove_home,
    write_home,
    write_revoked,
)
from potluck.net.peer import PeerIdentity, peer_identity
from potluck.reasons import reason
from potluck.wire import certificates
from potluck.wire.certificates import PAIRING_NAME, IpAddress, tls_name
from potluck.wire.messages import MAX_REVOKED

MAX_HOMES = 64  # each has its own TLS contexts and names

_KEY, _CERTIFICATE, _HOME_KEY, _HOMES = "node.key.pem", "node.pem", "home.key.pem", "homes"


class TrustWatcher(Protocol):
    """An object that must end when its peer is no longer trusted, such as an open connection."""

    def trust_changed(self) -> None: ...


class Identity:
    """This node's key and homes, read from a folder. Methods block, but briefly: files are small.

    The stage process loads the same folder, and calls `reload` when the node reports a change.
    """

    def __init__(
        self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        """Use `load_or_create` or `load`."""
        self.folder = folder
        self.certificate = certificate
        self._key = key
        self.node_id = NodeId(certificates.public_key_digest(certificate))
        self._homes: dict[HomeId, Home] = {}
        self._contexts: dict[HomeId, tuple[ssl.SSLContext, ssl.SSLContext]] = {}
        self._pairing = self._pairing_context()
        self._watchers: WeakSet[TrustWatcher] = WeakSet()

    # --- loading

    @classmethod
    def load_or_create(cls, folder: Path, name: str) -> "Identity":
        """Read this node's identity, or make it at the first start.

        The computer's name is for tools that print certificates; it does not identify the node.

        Raises:
            IdentityError: files of an identity exist, but they cannot be used.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            key_file, certificate_file = folder / _KEY, folder / _CERTIFICATE
            if not key_file.exists() and not _has_content(folder):
                key = certificates.new_key()
                write_atomically(key_file, certificates.key_to_pem(key))
            if key_file.exists() and not certificate_file.exists():
                certificate = certificates.self_signed(read_key(key_file), name)
                write_atomically(certificate_file, certificates.to_pem(certificate))
        except OSError as error:
            raise IdentityError(
                f"This computer's key cannot be written to {folder}: {reason(error)}. Potluck needs"
                " a folder of your own to keep it in.",
                path=str(folder),
            ) from error
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """Read an existing identity, and write nothing.

        Raises:
            IdentityError: a file is missing or damaged, or the files do not fit together.
        """
        key = read_key(folder / _KEY)
        certificate = read_certificate(folder / _CERTIFICATE)
        if key.public_key() != certificate.public_key():
            raise damaged(folder / _CERTIFICATE, "it belongs to another key")
        identity = cls(folder, key, certificate)
        identity.reload()
        return identity

    def reload(self) -> None:
        """Read homes and revocations again after another process changed them.

        Raises:
            IdentityError: as `load`; the state from before is kept.
        """
        folder = self.folder / _HOMES
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        homes = [read_home(path, self.node_id) for path in found if (path / HOME_FILE).exists()]
        before, self._homes = self._homes, {home.home_id: home for home in homes}
        for home in homes:
            if (
                home.home_id in before
                and home.certificate_pem != before[home.home_id].certificate_pem
            ):
                self._contexts.pop(home.home_id, None)
        self._trust_changed()

    # --- homes

    @property
    def certificate_der(self) -> bytes:
        """The self-signed certificate, as a pairing's TLS handshake shows it."""
        return certificates.to_der(self.certificate)

    @property
    def homes(self) -> Mapping[HomeId, Home]:
        return MappingProxyType(self._homes)

    @property
    def own_home(self) -> Home | None:
        """The home whose master is this node; None until it is created."""
        return next((h for h in self._homes.values() if h.master == self.node_id), None)

    def create_home(self, name: str) -> Home:
        """Return this node's own home; create it, with this node as master, if there is none."""
        if self.own_home is not None:
            return self.own_home
        key_file = self.folder / _HOME_KEY
        if not key_file.exists():
            key_pem = certificates.key_to_pem(certificates.new_key())
            write_atomically(key_file, key_pem)
        key = read_key(key_file)
        authority = certificates.new_authority(key, name)
        member = certificates.issue_member(authority, key, self.certificate, "master")
        ca_pem, member_pem = certificates.to_pem(authority), certificates.to_pem(member)
        return self.add_home(
            ca_pem=ca_pem, certificate_pem=member_pem, name=name, master=self.node_id
        )

    def issue(self, certificate: bytes) -> bytes:
        """Issue a worker's certificate in the own home, in PEM, for a node that was just paired.

        Pairing a revoked node again removes its revocation.

        Args:
            certificate: the node's self-signed certificate, DER or PEM.

        Raises:
            PairingError: `certificate` is not a valid self-signed certificate.
            IdentityError: there is no own home, or its key is damaged.
        """
        home = self._require_own_home()
        key = read_key(self.folder / _HOME_KEY)
        authority = x509.load_pem_x509_certificate(home.ca_pem)
        peer = certificates.peer_certificate(certificate)
        member = certificates.issue_member(authority, key, peer, "worker")
        node_id = NodeId(certificates.public_key_digest(peer))
        if node_id == self.node_id:
            raise PairingError("This computer cannot be paired with itself.")
        if node_id in home.revoked:
            self.set_revoked(home.home_id, home.revoked - {node_id})
        return certificates.to_pem(member)

    def issue_server(self, names: Sequence[str], addresses: Sequence[IpAddress]) -> bytes:
        """A new key, and the certificate of the own home for a server with it, in PEM.

        Args:
            names: that programs call this computer; the first one is shown to people.
            addresses: likewise.

        Raises:
            IdentityError: there is no own home, or its key is damaged.
        """
        home = self._require_own_home()
        authority = x509.load_pem_x509_certificate(home.ca_pem)
        key = certificates.new_key()
        certificate = certificates.issue_server(
            authority,
            read_key(self.folder / _HOME_KEY),
            key.public_key(),
            names,
            addresses,
            datetime.now(UTC),
        )
        return certificates.key_to_pem(key) + certificates.to_pem(certificate)

    def add_home(self, *, ca_pem: bytes, certificate_pem: bytes, name: str, master: NodeId) -> Home:
        """Join a home, or join it again with a new certificate.

        Raises:
            PairingError: the certificates are not for this node, or belong to different homes; or
                the home is known, and has another master.
        """
        authority = certificates.peer_certificate(ca_pem)
        member = certificates.peer_certificate(certificate_pem)
        role: Role = "master" if master == self.node_id else "worker"
        certificates.check_member(authority, member, self.node_id, role)
        home_id = HomeId(certificates.public_key_digest(authority))
        known = self._homes.get(home_id)
        if known is not None and known.master != master:
            raise PairingError(
                "This computer belongs to that home already, and its main computer is another one."
                " Nothing was changed."
            )
        if known is None and len(self._homes) >= MAX_HOMES:
            raise PairingError(
                f"This computer belongs to {MAX_HOMES} homes already. Leave one first."
            )
        if not is_digest(master):
            raise PairingError("The home's master has no valid node id.")
        folder = self.folder / _HOMES / home_id
        write_home(folder, authority, member, name, master)
        home = read_home(folder, self.node_id)
        self._contexts.pop(home_id, None)
        self._homes[home_id] = home
        self._trust_changed()
        return home

    def remove_home(self, home_id: HomeId) -> None:
        """Leave the home of another master. The home's connections end at once."""
        if self.own_home is not None and self.own_home.home_id == home_id:
            raise IdentityError("A computer cannot leave its own home.")
        if self._homes.pop(home_id, None) is None:
            return
        try:
            remove_home(self.folder / _HOMES / home_id)
        finally:  # even if the disk fails, end the connections
            self._trust_changed()

    # --- trust

    def revoke(self, node_id: NodeId) -> None:
        """Stop trusting a worker of the own home. Its connections with this node end at once."""
        home = self._require_own_home()
        if node_id == self.node_id:
            raise IdentityError("A computer cannot be removed from its own home.")
        self.set_revoked(home.home_id, home.revoked | {node_id})

    def set_revoked(self, home_id: HomeId, node_ids: Iterable[NodeId]) -> None:
        """Replace the list of revoked nodes by the one that the home's master sent."""
        home = self._homes[home_id]
        revoked = frozenset(n for n in node_ids if is_digest(n) and n != home.master)
        if len(revoked) > MAX_REVOKED:
            raise IdentityError(f"More than {MAX_REVOKED} computers were removed from this home.")
        folder = self.folder / _HOMES / home_id
        write_revoked(folder, revoked)
        self._homes[home_id] = read_home(folder, self.node_id)
        self._trust_changed()

    def trusts(self, peer: PeerIdentity) -> bool:
        home = self._homes.get(peer.home)
        return home is not None and peer.node_id not in home.revoked

    def watch(self, watcher: "TrustWatcher") -> None:
        """Call `watcher.trust_changed` when a home is left or a node revoked. Held weakly."""
        self._watchers.add(watcher)

    def watching(self) -> "list[TrustWatcher]":
        """What watches, and is in use still: every open connection of this process, and more."""
        return list(self._watchers)

    def sign(self, data: bytes) -> bytes:
        """Sign with ECDSA and this node's key, for pairing."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    # --- TLS

    def server_context(self) -> ssl.SSLContext:
        """The context of every listener. The client's SNI says which home a connection is for."""
        context = self._base_context(ssl.PROTOCOL_TLS_SERVER, self.folder / _CERTIFICATE)
        context.verify_mode = ssl.CERT_OPTIONAL  # see the module's docstring
        context.sni_callback = self._choose_context
        return context

    def client_context(self, home_id: HomeId) -> ssl.SSLContext:
        """The context to dial members of a home, with `tls_name` as server name.

        Raises:
            IdentityError: this node does not belong to the home.
        """
        if home_id not in self._homes:
            raise IdentityError("This computer does not belong to that home (any more).")
        return self._home_contexts(home_id)[1]

    def pairing_client_context(self) -> ssl.SSLContext:
        """The context to dial an unknown node: pairing checks its certificate, TLS does not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def authenticate(
        self, tls: ssl.SSLObject, home_id: HomeId | None = None
    ) -> PeerIdentity | None:
        """Return the peer of a finished handshake; None: a peer that may only pair.

        The client passes the home that it dialled; on the server's side, the SNI callback knows it.

        Raises:
            UntrustedPeerError: the peer showed no certificate of the home, or was revoked.
        """
        if home_id is None:
            if tls.context is self._pairing:
                return None
            home_id = next((h for h, c in self._contexts.items() if c[0] is tls.context), None)
        shown = tls.getpeercert()
        if home_id is None or not shown:
            raise UntrustedPeerError("A computer connected without a certificate of this home.")
        peer = peer_identity(shown, home_id)
        if not self.trusts(peer):
            raise UntrustedPeerError(
                f"The computer {short(peer.node_id)} was removed from this home. Pair it again to"
                " use it.",
                node_id=peer.node_id,
            )
        return peer

    # --- private

    def _choose_context(
        self, tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if name == PAIRING_NAME:
            tls.context = self._pairing
            return None
        for home_id in self._homes:
            if name == tls_name(self.node_id, home_id):
                tls.context = self._home_contexts(home_id)[0]
                return None
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def _home_contexts(self, home_id: HomeId) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        if home_id not in self._contexts:
            folder = self.folder / _HOMES / home_id
            server = self._base_context(ssl.PROTOCOL_TLS_SERVER, folder / MEMBER_FILE)
            client = self._base_context(ssl.PROTOCOL_TLS_CLIENT, folder / MEMBER_FILE)
            for context in (server, client):
                context.load_verify_locations(cadata=self._homes[home_id].ca_pem.decode())
                context.verify_mode = ssl.CERT_REQUIRED
            self._contexts[home_id] = (server, client)
        return self._contexts[home_id]

    def _pairing_context(self) -> ssl.SSLContext:
        return self._base_context(ssl.PROTOCOL_TLS_SERVER, self.folder / _CERTIFICATE)

    def _base_context(self, side: int, certificate_file: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no resumption: every connection authenticates again
        try:
            context.load_cert_chain(certificate_file, self.folder / _KEY)
        except (OSError, ssl.SSLError) as error:
            raise damaged(certificate_file, "OpenSSL does not accept it") from error
        return context

    def _require_own_home(self) -> Home:
        if self.own_home is None:
            raise IdentityError("This computer has no home of its own yet.")
        return self.own_home

    def _trust_changed(self) -> None:
        for home_id in self._contexts.keys() - self._homes.keys():
            del self._contexts[home_id]
        for watcher in self.watching():
            watcher.trust_changed()


def _has_content(folder: Path) -> bool:
    """Whether the folder has files that belong to the missing key."""
    return any((folder / name).exists() for name in (_CERTIFICATE, _HOME_KEY, _HOMES))
