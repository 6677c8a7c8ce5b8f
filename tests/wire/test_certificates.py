"""Certificates as files and strangers present them."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from potluck.errors import PairingError
from potluck.ids import HomeId, NodeId
from potluck.wire import certificates
from potluck.wire.certificates import (
    check_member,
    common_name,
    issue_member,
    key_from_pem,
    key_to_pem,
    new_authority,
    new_key,
    node_label,
    node_of_label,
    peer_certificate,
    public_key_digest,
    self_signed,
    tls_name,
    to_der,
)

NODE = NodeId("0123456789abcdef" * 4)


def test_a_certificate_is_valid_whatever_the_clock_says() -> None:
    certificate = self_signed(new_key(), "Laptop")

    assert certificate.not_valid_before_utc == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert certificate.not_valid_after_utc.year == 9999


def test_a_tls_name_is_a_name_that_dns_and_tls_can_hold() -> None:
    name = tls_name(NODE, HomeId("f" * 64))

    assert name.endswith(f".{'f' * 32}.potluck.internal")
    assert len(name) <= 253
    assert all(len(label) <= 63 for label in name.split("."))
    assert node_of_label(name.split(".")[0]) == NODE


@pytest.mark.parametrize("label", ["", "x", "laptop", "1" * 52, "aa", node_label(NODE) + "aaaa"])
def test_what_names_no_node_is_an_error(label: str) -> None:
    with pytest.raises(ValueError, match="names no node"):
        node_of_label(label)


def test_a_key_survives_its_file_and_other_keys_are_refused() -> None:
    key = new_key()
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

    assert key_from_pem(key_to_pem(key)).private_numbers() == key.private_numbers()
    for wrong in (other, key_to_pem(ec.generate_private_key(ec.SECP384R1())), b""):
        with pytest.raises(ValueError, match=r"key|PEM"):
            key_from_pem(wrong)


def test_a_name_that_is_long_or_unprintable_is_cut() -> None:
    assert common_name(self_signed(new_key(), "x" * 500)) == "x" * 64
    assert common_name(self_signed(new_key(), "\x1b[31mred\n")) == "[31mred"
    assert common_name(self_signed(new_key(), "")) == "Potluck"


def test_a_key_on_another_curve_gets_no_certificate() -> None:
    key, authority_key = ec.generate_private_key(ec.SECP384R1()), new_key()
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())
    )

    with pytest.raises(PairingError, match="not of the kind"):
        issue_member(new_authority(authority_key, "home"), authority_key, certificate, "worker")


def test_a_members_certificate_is_of_one_node_one_home_and_one_role() -> None:
    authority_key, key = new_key(), new_key()
    authority = new_authority(authority_key, "home")
    node = self_signed(key, "Laptop")
    node_id = NodeId(public_key_digest(node))
    member = issue_member(authority, authority_key, node, "worker")

    check_member(authority, member, node_id, "worker")
    with pytest.raises(PairingError, match="not one for a master"):
        check_member(authority, member, node_id, "master")
    with pytest.raises(PairingError, match="another computer"):
        check_member(authority, member, NODE, "worker")
    with pytest.raises(PairingError, match="do not fit together"):
        check_member(new_authority(new_key(), "home"), member, node_id, "worker")
    with pytest.raises(PairingError, match="do not fit together"):
        check_member(authority, node, node_id, "worker")


def test_a_node_is_no_home() -> None:
    """A member cannot make itself an authority: what it signs belongs to no home."""
    authority_key, key = new_key(), new_key()
    authority = new_authority(authority_key, "home")
    node = self_signed(key, "Laptop")
    member = issue_member(authority, authority_key, node, "worker")
    forged = issue_member(member, key, self_signed(new_key(), "friend"), "master")

    with pytest.raises(PairingError):
        check_member(node, forged, NodeId(public_key_digest(forged)), "master")
    with pytest.raises(PairingError):
        check_member(member, forged, NodeId(public_key_digest(forged)), "master")
    assert certificates.to_der(forged)


def test_a_certificate_of_an_unknown_version_is_none() -> None:
    data = to_der(self_signed(new_key(), "Ana"))
    version_3 = b"\xa0\x03\x02\x01\x02"
    assert data.count(version_3) == 1

    with pytest.raises(PairingError, match="no certificate"):
        peer_certificate(data.replace(version_3, b"\xa0\x03\x02\x01\x5a"))


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_any_byte_of_a_strangers_certificate_may_be_another_one() -> None:
    """Either it is refused as a whole, or nothing that is asked of it later fails."""
    data = to_der(self_signed(new_key(), "Laptop"))
    refused = 0
    for place in range(len(data)):
        for value in (0x00, 0x5A, 0xFF, data[place] ^ 1):
            try:
                certificate = peer_certificate(data[:place] + bytes([value]) + data[place + 1 :])
            except PairingError:
                refused += 1
            else:
                public_key_digest(certificate)
                common_name(certificate)

    assert refused > len(data)
