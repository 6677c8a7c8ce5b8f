"""What is proved in a pairing, and what is no proof."""

import dataclasses
import os

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from wire_pairs import Computer

from potluck.ids import Role
from potluck.wire import proofs
from potluck.wire.proofs import ProofError, Seen

ROLES: tuple[Role, Role] = ("master", "worker")


def seen(name: str, nonce: bytes = b"n" * 32) -> Seen:
    return Seen(name=name, certificate=b"certificate of " + name.encode(), nonce=nonce)


MASTER, WORKER = seen("Desk"), seen("Laptop")
WHOLE = proofs.transcript("sight", (1,), 1, MASTER, WORKER)


@pytest.fixture(scope="module")
def computer() -> Computer:
    return Computer("Desk")


def signed(computer: Computer, role: Role, transcript: bytes) -> bytes:
    return computer.key.sign(proofs.to_sign(role, transcript), ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize("field", ["name", "certificate", "nonce"])
@pytest.mark.parametrize("role", ROLES)
def test_a_transcript_changes_with_everything_that_either_side_said(role: Role, field: str) -> None:
    other: object = "Desl" if field == "name" else os.urandom(32)
    sides = {"master": MASTER, "worker": WORKER}
    sides[role] = dataclasses.replace(sides[role], **{field: other})

    assert proofs.transcript("sight", (1,), 1, sides["master"], sides["worker"]) != WHOLE


def test_a_transcript_changes_with_the_way_the_versions_and_the_roles() -> None:
    others = {
        proofs.transcript("token", (1,), 1, MASTER, WORKER),
        proofs.transcript("sight", (1, 2), 1, MASTER, WORKER),
        proofs.transcript("sight", (1,), 2, MASTER, WORKER),
        proofs.transcript("sight", (1,), 1, WORKER, MASTER),
        proofs.transcript("sight", (1,), 1, MASTER, WORKER, b"more"),
    }

    assert len(others | {WHOLE}) == 6


def test_fields_cannot_run_into_each_other() -> None:
    one = dataclasses.replace(MASTER, name="ab", certificate=b"c")
    two = dataclasses.replace(MASTER, name="a", certificate=b"bc")

    assert proofs.transcript("sight", (1,), 1, one, WORKER) != proofs.transcript(
        "sight", (1,), 1, two, WORKER
    )


def test_the_digits_are_six_and_hardly_ever_the_same() -> None:
    codes = {proofs.short_code(os.urandom(32)) for _ in range(200)}

    assert all(len(code) == 7 and code[3] == " " for code in codes)
    assert all(code.replace(" ", "").isdigit() for code in codes)
    assert len(codes) > 190


def test_a_commitment_fixes_the_nonce() -> None:
    nonce = os.urandom(32)

    assert proofs.commit(nonce) == proofs.commit(nonce)
    assert proofs.commit(nonce) not in (nonce, proofs.commit(os.urandom(32)))


def test_a_signature_holds_for_its_key_role_and_transcript_alone(computer: Computer) -> None:
    signature = signed(computer, "master", WHOLE)

    proofs.check_signature(computer.certificate, "master", WHOLE, signature)
    other = Computer("Laptop")
    wrong: tuple[tuple[bytes, Role, bytes], ...] = (
        (other.certificate, "master", WHOLE),
        (computer.certificate, "worker", WHOLE),
        (computer.certificate, "master", WHOLE[::-1]),
    )
    for certificate, role, transcript in wrong:
        with pytest.raises(ProofError, match="signature"):
            proofs.check_signature(certificate, role, transcript, signature)


def test_a_secret_is_proved_for_one_role_and_transcript() -> None:
    proof = proofs.secret_proof(b"secret", "worker", WHOLE)

    proofs.check_secret(b"secret", "worker", WHOLE, proof)
    wrong: tuple[tuple[bytes, Role, bytes], ...] = (
        (b"Secret", "worker", WHOLE),
        (b"secret", "master", WHOLE),
        (b"secret", "worker", WHOLE[::-1]),
    )
    for secret, role, transcript in wrong:
        with pytest.raises(ProofError, match="secret"):
            proofs.check_secret(secret, role, transcript, proof)


def test_a_master_shows_a_certificate_of_its_home_for_its_own_key(computer: Computer) -> None:
    issued = computer.master

    proofs.check_master(computer.authority, issued, computer.certificate)


def test_what_is_no_masters_certificate_is_refused(computer: Computer) -> None:
    other = Computer("Laptop")
    issued = computer.master
    wrong = {
        "another home": (other.authority, issued, computer.certificate),
        "another computer": (computer.authority, issued, other.certificate),
        "a worker": (
            computer.authority,
            computer.issue(computer.certificate).certificate,
            computer.certificate,
        ),
        "no home": (computer.certificate, issued, computer.certificate),
        "no certificate": (computer.authority, b"nonsense", computer.certificate),
    }

    for authority, certificate, shown in wrong.values():
        with pytest.raises(ProofError):
            proofs.check_master(authority, certificate, shown)


@pytest.mark.parametrize("nonsense", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\n"])
def test_bytes_that_are_no_certificate_have_no_id(nonsense: bytes) -> None:
    with pytest.raises(ProofError, match="no certificate"):
        proofs.node_id(nonsense)
