"""Keys and certificates as pure functions: the X.509 form of a node, a home and a member.

A node's certificate is self-signed and used only for pairing. A home is a certificate authority
that signs one certificate per member. A member's certificate has the name that other members dial
as its subject alternative name, and the member's role as its organizational unit.

Certificates are valid from 1970 and never expire: the computers of a home can have wrong clocks
(1970 or 2000 after a flat battery), and nobody there renews certificates. A membership ends by
revocation.
"""

import base64
import binascii
import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from potluck.errors import PairingError
from potluck.ids import HomeId, NodeId, Role, is_digest, short

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

DOMAIN = "potluck.internal"  # .internal is reserved for private use; no resolver answers it
PAIRING_NAME = f"pair.{DOMAIN}"
MAX_CERTIFICATE = 4096  # bytes; ours have about 600

_BEGINNING = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280, 4.1.2.5
_HOME_CHARACTERS = 32  # of the home's id in a name: 128 bits are unique, and a label holds 63
_NAME_CHARACTERS = 64  # X.520's limit of a common name
_SERVER_DAYS = 397
_ROLE = NameOID.ORGANIZATIONAL_UNIT_NAME
_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a P-256 key. Every TLS 1.3 library has the curve, and its keys are small and fast."""
    return ec.generate_private_key(ec.SECP256R1())


def public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The public key of a certificate.

    Raises:
        PairingError: the key cannot be read, or is not on P-256.
    """
    try:
        key = certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PairingError("The other computer's certificate has no readable key.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PairingError("The other computer's key is not of the kind that Potluck uses.")
    return key


def public_key_digest(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's SubjectPublicKeyInfo: the id of the node or home it belongs to.

    Raises:
        PairingError: as `public_key`.
    """
    return hashlib.sha256(
        public_key(certificate).public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).hexdigest()


def node_label(node_id: NodeId) -> str:
    """A node id as a DNS label: 52 characters of base32, since hex would be too long."""
    return base64.b32encode(bytes.fromhex(node_id)).decode().rstrip("=").lower()


def node_of_label(label: str) -> NodeId:
    """The node id that a label stands for.

    Raises:
        ValueError: the label is not a node id.
    """
    try:
        digest = base64.b32decode(label.upper() + "=" * (-len(label) % 8))
    except binascii.Error as error:
        raise ValueError(f"{label!r} names no node") from error
    if not is_digest(digest.hex()):
        raise ValueError(f"{label!r} names no node")
    return NodeId(digest.hex())


def tls_name(node_id: NodeId, home_id: HomeId) -> str:
    """The TLS name at which a node of a home is dialled."""
    return f"{node_label(node_id)}.{home_id[:_HOME_CHARACTERS]}.{DOMAIN}"


def self_signed(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    """A node's self-signed certificate. It states the node's key and nothing else."""
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), key.public_key())
    return builder.sign(key, hashes.SHA256())


def new_authority(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    """The certificate of a home. It signs members directly, never another authority."""
    subject = _subject(f"{name} (home)")
    builder = _builder(subject, subject, key.public_key(), key.public_key(), authority=True)
    return builder.sign(key, hashes.SHA256())


def issue_member(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    member: x509.Certificate,
    role: Role,
) -> x509.Certificate:
    """Issue the home's certificate for the node that has this self-signed certificate.

    Raises:
        PairingError: the certificate is not signed with its own key, or the key is not P-256.
    """
    key = public_key(member)
    try:
        member.verify_directly_issued_by(member)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise PairingError(
            "The other computer could not prove that its key is its own. Nothing was paired."
        ) from error
    node_id = NodeId(public_key_digest(member))
    home_id = HomeId(public_key_digest(authority))
    authority_public_key = authority_key.public_key()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, short(node_id)),
        ]
    )
    builder = _builder(subject, authority.subject, key, authority_public_key).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(tls_name(node_id, home_id))]), critical=False
    )
    return builder.sign(authority_key, hashes.SHA256())


def issue_server(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    names: Sequence[str],
    addresses: Sequence[IpAddress],
    now: datetime.datetime,
) -> x509.Certificate:
    """Issue the certificate of a server for programs of the home, which is no member: it cannot be a client.

    It is valid for 397 days from yesterday on: browsers and Apple's systems take none that is valid longer.
    """
    alternatives = [
        *(x509.DNSName(name) for name in names),
        *(x509.IPAddress(address) for address in addresses),
    ]
    day = datetime.timedelta(days=1)
    builder = _builder(
        _subject(names[0]),
        authority.subject,
        key,
        authority_key.public_key(),
        valid=(now - day, now + _SERVER_DAYS * day),
        uses=[ExtendedKeyUsageOID.SERVER_AUTH],
    ).add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def check_member(
    authority: x509.Certificate, member: x509.Certificate, node_id: NodeId, role: Role
) -> None:
    """Check that the member's certificate, issued by the home, has the right content for the node.

    Raises:
        PairingError: it does not; the message says what is wrong.
    """
    home_id = HomeId(public_key_digest(authority))
    try:
        authority.verify_directly_issued_by(authority)
        member.verify_directly_issued_by(authority)
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        names = member.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        ValueError,
        TypeError,
        InvalidSignature,
        UnsupportedAlgorithm,
        x509.ExtensionNotFound,
    ) as error:
        raise PairingError("The home's certificates do not fit together.") from error
    roles = [a.value for a in member.subject.get_attributes_for_oid(_ROLE)]
    if not constraints.ca:
        raise PairingError("The certificate of the home is not one of a home.")
    if public_key_digest(member) != node_id:
        raise PairingError("The home's certificate is for the key of another computer.")
    if names.get_values_for_type(x509.DNSName) != [tls_name(node_id, home_id)]:
        raise PairingError("The home's certificate names another computer.")
    if roles != [role]:
        raise PairingError(f"The home's certificate is not one for a {role}.")


def common_name(certificate: x509.Certificate) -> str:
    """The common name of a self-signed certificate, as one line of text. It proves nothing."""
    names = [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    name = names[0] if names and isinstance(names[0], str) else ""
    return "".join(c for c in name if c.isprintable())[:_NAME_CHARACTERS]


def to_pem(certificate: x509.Certificate) -> bytes:
    """The certificate in PEM, as in files and pairing messages."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def to_der(certificate: x509.Certificate) -> bytes:
    """The certificate in DER, as in a TLS handshake."""
    return certificate.public_bytes(serialization.Encoding.DER)


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key in PEM, as in its file, which only its owner may read."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),  # starts without a person; the file is private
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key in PEM. Raises ValueError if it is not a P-256 key."""
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return key


def peer_certificate(data: bytes) -> x509.Certificate:
    """Read a certificate that another computer sent, in DER or PEM.

    The library parses subject, extensions and key only when they are asked for. They are asked for
    here, so that none of them can fail later.

    Raises:
        PairingError: the bytes are not a certificate, or too large to be one of ours.
    """
    if len(data) > MAX_CERTIFICATE:
        raise PairingError("The other computer sent a certificate that is too large.")
    try:
        is_pem = data.startswith(b"-----BEGIN")
        load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
        certificate = load(data)
        _ = certificate.subject, certificate.extensions
    except Exception as error:  # whatever a parser raises that reads a stranger's bytes
        raise PairingError("The other computer sent something that is no certificate.") from error
    public_key(certificate)
    return certificate


def _subject(name: str) -> x509.Name:
    text = "".join(c for c in name if c.isprintable())[:_NAME_CHARACTERS] or "Potluck"
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    *,
    authority: bool = False,
    valid: tuple[datetime.datetime, datetime.datetime] = (_BEGINNING, _NEVER),
    uses: Sequence[x509.ObjectIdentifier] = _USES,
) -> x509.CertificateBuilder:
    """The common fields of all our certificates. OpenSSL checks the rules of RFC 5280 strictly."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(
            x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not authority,
                key_cert_sign=authority,
                crl_sign=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )
    if not authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder
