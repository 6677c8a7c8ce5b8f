"""Keys and homes on disk, whom a home trusts, and the certificates it signs."""

import json
import os
import stat
import sys
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tls_sides import join, make

from potluck.errors import IdentityError, PairingError
from potluck.ids import NodeId
from potluck.net.identity import Identity
from potluck.wire import certificates, proofs


class Watcher:
    heard = 0

    def trust_changed(self) -> None:
        self.heard += 1


def test_an_identity_is_the_same_after_a_restart(tmp_path: Path) -> None:
    first = make(tmp_path, "desk")
    home = first.create_home("Anna's home")

    second = make(tmp_path, "desk")

    assert second.node_id == first.node_id
    assert second.certificate_der == first.certificate_der
    assert second.own_home == home
    assert second.homes == {home.home_id: home}


def test_a_node_id_is_the_digest_of_the_public_key(tmp_path: Path) -> None:
    identity = make(tmp_path, "desk")

    seen = certificates.peer_certificate(identity.certificate_der)

    assert certificates.public_key_digest(seen) == identity.node_id
    assert certificates.node_of_label(certificates.node_label(identity.node_id)) == identity.node_id


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of this kind are POSIX's")
def test_private_keys_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        identity = make(tmp_path, "desk")
        identity.create_home("Anna's home")
    finally:
        os.umask(old)

    for name in ("node.key.pem", "home.key.pem"):
        assert stat.S_IMODE((identity.folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700


def test_a_lost_certificate_is_made_again_from_the_key(tmp_path: Path) -> None:
    identity = make(tmp_path, "desk")
    (identity.folder / "node.pem").unlink()

    assert make(tmp_path, "desk").node_id == identity.node_id


def test_a_lost_key_is_an_error_and_not_a_new_computer(tmp_path: Path) -> None:
    identity = make(tmp_path, "desk")
    (identity.folder / "node.key.pem").unlink()

    with pytest.raises(IdentityError, match="is missing"):
        make(tmp_path, "desk")
    assert not (identity.folder / "node.key.pem").exists()


@pytest.mark.parametrize("name", ["node.key.pem", "node.pem", "homes/{home}/ca.pem"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\x00"])
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    identity = make(tmp_path, "desk")
    home = identity.create_home("Anna's home")
    damaged = identity.folder / name.format(home=home.home_id)
    damaged.write_bytes(content)

    with pytest.raises(IdentityError, match=damaged.name):
        make(tmp_path, "desk")
    assert damaged.read_bytes() == content


@pytest.mark.parametrize("about", ["[]", '{"name": 1}', '{"name": "x", "master": "../x"}', "{"])
def test_a_home_file_that_says_nothing_is_an_error(tmp_path: Path, about: str) -> None:
    identity = make(tmp_path, "desk")
    home = identity.create_home("Anna's home")
    (identity.folder / "homes" / home.home_id / "home.json").write_text(about)

    with pytest.raises(IdentityError, match=r"home\.json"):
        Identity.load(identity.folder)


def test_a_home_whose_joining_was_interrupted_is_not_joined(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    (worker.folder / "homes" / home / "home.json").unlink()

    assert Identity.load(worker.folder).homes == {}


def test_loading_without_an_identity_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        Identity.load(tmp_path / "none")

    assert not (tmp_path / "none").exists()


def test_a_home_cannot_be_made_to_distrust_its_master(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)

    worker.set_revoked(home, [master.node_id, NodeId("../x"), NodeId("ab" * 32)])

    assert worker.homes[home].revoked == {"ab" * 32}
    with pytest.raises(IdentityError):
        master.revoke(master.node_id)


def test_who_watches_hears_of_every_change_of_trust(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    watcher = Watcher()
    worker.watch(watcher)

    worker.set_revoked(home, [NodeId("ab" * 32)])
    worker.remove_home(home)
    worker.reload()

    assert watcher.heard == 3


@pytest.mark.parametrize("obstacle", ["a leftover", "a folder in the way"])
def test_leaving_a_home_ends_its_connections_whatever_the_disk_says(
    tmp_path: Path, obstacle: str
) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    folder = worker.folder / "homes" / home
    watcher = Watcher()
    worker.watch(watcher)

    if obstacle == "a leftover":
        (folder / ".ca.pem.1a2b3c4d").write_text("half of it")
        worker.remove_home(home)
        assert Identity.load(worker.folder).homes == {}
    else:
        (folder / "home.json").unlink()
        (folder / "home.json").mkdir()
        with pytest.raises(OSError, match=r"home\.json"):
            worker.remove_home(home)

    assert watcher.heard == 1
    assert not worker.homes


def test_a_certificate_for_another_computer_is_no_way_into_a_home(tmp_path: Path) -> None:
    master, one, two = (make(tmp_path, name) for name in ("master", "one", "two"))
    home = master.create_home("Anna's")
    member = master.issue(one.certificate_der)

    with pytest.raises(PairingError, match="another computer"):
        two.add_home(ca_pem=home.ca_pem, certificate_pem=member, name="x", master=master.node_id)
    assert two.homes == {}


def test_a_home_that_did_not_sign_the_certificate_is_not_joined(tmp_path: Path) -> None:
    master, other, worker = (make(tmp_path, name) for name in ("master", "other", "worker"))
    master.create_home("Anna's")
    member = master.issue(worker.certificate_der)

    with pytest.raises(PairingError, match="do not fit together"):
        worker.add_home(
            ca_pem=other.create_home("Ben's").ca_pem,
            certificate_pem=member,
            name="x",
            master=master.node_id,
        )


def test_a_workers_certificate_does_not_make_it_a_master(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = master.create_home("Anna's")
    member = master.issue(worker.certificate_der)

    with pytest.raises(PairingError, match="not one for a master"):
        worker.add_home(ca_pem=home.ca_pem, certificate_pem=member, name="x", master=worker.node_id)


def test_the_master_of_a_known_home_never_changes(tmp_path: Path) -> None:
    master, worker, other = (make(tmp_path, name) for name in ("master", "worker", "other"))
    home = master.create_home("Anna's")
    member = master.issue(worker.certificate_der)
    worker.add_home(ca_pem=home.ca_pem, certificate_pem=member, name="x", master=master.node_id)

    with pytest.raises(PairingError, match="its main computer is another one"):
        worker.add_home(ca_pem=home.ca_pem, certificate_pem=member, name="x", master=other.node_id)
    assert worker.homes[home.home_id].master == master.node_id
    assert Identity.load(worker.folder).homes[home.home_id].master == master.node_id


@pytest.mark.parametrize("certificate", [b"", b"x" * 100, b"-----BEGIN", b"x" * 10_000])
def test_what_is_no_certificate_gets_none(tmp_path: Path, certificate: bytes) -> None:
    master = make(tmp_path, "master")
    master.create_home("Anna's")

    with pytest.raises(PairingError):
        master.issue(certificate)


def test_a_certificate_with_a_foreign_key_gets_none(tmp_path: Path) -> None:
    """Somebody who puts another's public key into a certificate cannot sign it."""
    master, victim, thief = (make(tmp_path, name) for name in ("master", "victim", "thief"))
    master.create_home("Anna's")
    home = thief.create_home("Thief's")
    stolen = thief.issue(victim.certificate_der)  # the victim's key, signed by the thief

    assert home.home_id != master.node_id
    with pytest.raises(PairingError, match="could not prove"):
        master.issue(stolen)


def test_a_servers_certificate_is_no_members(tmp_path: Path) -> None:
    desk, laptop = make(tmp_path, "desk"), make(tmp_path, "laptop")
    home = desk.create_home("Anna's home")
    pem = desk.issue_server(["desk.local"], [ip_address("192.168.1.2")])
    issued = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    authority = x509.load_pem_x509_certificate(home.ca_pem)

    issued.verify_directly_issued_by(authority)
    uses = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert issued.not_valid_after_utc - issued.not_valid_before_utc <= timedelta(days=398)
    for identity in (desk, laptop):
        with pytest.raises(PairingError):
            certificates.check_member(authority, issued, identity.node_id, "worker")


def test_a_signature_is_of_one_key_over_one_text(tmp_path: Path) -> None:
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    signature = one.sign(proofs.to_sign("worker", b"text"))

    proofs.check_signature(one.certificate_der, "worker", b"text", signature)
    for certificate, data in ((two.certificate_der, b"text"), (one.certificate_der, b"texts")):
        with pytest.raises(proofs.ProofError):
            proofs.check_signature(certificate, "worker", data, signature)


def test_a_long_home_name_is_cut_and_no_path(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker, "../" * 100)

    assert worker.homes[home].name == ("../" * 100)[:128]
    assert [p.name for p in (worker.folder / "homes").iterdir()] == [home]
    assert json.loads((worker.folder / "homes" / home / "home.json").read_text())["name"]
