"""Who is let in by a home's TLS, and who is not, over memory BIOs: no socket."""

import ssl
from pathlib import Path

import pytest
from tls_sides import dial, handshake, join, make

from potluck.errors import IdentityError, UntrustedPeerError
from potluck.net.identity import Identity, PeerIdentity
from potluck.wire import certificates
from potluck.wire.certificates import PAIRING_NAME, tls_name


def test_a_worker_and_its_master_know_each_other(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)

    assert dial(master, worker, home) == (
        PeerIdentity(node_id=worker.node_id, role="worker", home=home),
        PeerIdentity(node_id=master.node_id, role="master", home=home),
    )


def test_two_workers_of_one_home_know_each_other(tmp_path: Path) -> None:
    master, one, two = (make(tmp_path, name) for name in ("master", "one", "two"))
    home = join(master, one)
    join(master, two)

    assert dial(one, two, home) == (
        PeerIdentity(node_id=two.node_id, role="worker", home=home),
        PeerIdentity(node_id=one.node_id, role="worker", home=home),
    )


def test_a_worker_of_two_homes_shows_each_its_own_certificate(tmp_path: Path) -> None:
    anna, ben, worker = (make(tmp_path, name) for name in ("anna", "ben", "worker"))
    homes = [join(anna, worker, "Anna's"), join(ben, worker, "Ben's")]

    for master, home in zip((anna, ben), homes, strict=True):
        seen_by_master, seen_by_worker = dial(master, worker, home)

        assert seen_by_master == PeerIdentity(node_id=worker.node_id, role="worker", home=home)
        assert seen_by_worker == PeerIdentity(node_id=master.node_id, role="master", home=home)


def test_a_certificate_of_another_home_is_refused(tmp_path: Path) -> None:
    anna, ben, worker = (make(tmp_path, name) for name in ("anna", "ben", "worker"))
    join(anna, worker)
    home = anna.create_home("").home_id
    bens = ben.create_home("Ben's").home_id

    context = ben.client_context(bens)  # shows Ben's certificate
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # and takes any other

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, worker.server_context(), tls_name(worker.node_id, home))


def test_a_member_without_a_certificate_is_refused(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    context = master.pairing_client_context()

    _, server = handshake(context, worker.server_context(), tls_name(worker.node_id, home))

    with pytest.raises(UntrustedPeerError):
        worker.authenticate(server)


def test_a_self_signed_certificate_is_refused_by_a_home(tmp_path: Path) -> None:
    master, worker, stranger = (make(tmp_path, name) for name in ("master", "worker", "stranger"))
    home = join(master, worker)
    context = stranger.pairing_client_context()
    context.load_cert_chain(stranger.folder / "node.pem", stranger.folder / "node.key.pem")

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, worker.server_context(), tls_name(worker.node_id, home))


def test_another_node_than_the_one_dialled_is_refused(tmp_path: Path) -> None:
    master, one, two = (make(tmp_path, name) for name in ("master", "one", "two"))
    home = join(master, one)
    join(master, two)
    impostor = two.server_context()
    impostor.sni_callback = lambda tls, name, context: setattr(
        tls, "context", two._home_contexts(home)[0]
    )

    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(master.client_context(home), impostor, tls_name(one.node_id, home))


@pytest.mark.parametrize("name", ["example.org", f"x.{certificates.DOMAIN}", "127.0.0.1"])
def test_an_unknown_server_name_is_refused(tmp_path: Path, name: str) -> None:
    worker = make(tmp_path, "worker")

    with pytest.raises(ssl.SSLError):
        handshake(worker.pairing_client_context(), worker.server_context(), name)


def test_a_pairing_client_sees_the_own_certificate_and_shows_none(tmp_path: Path) -> None:
    worker = make(tmp_path, "worker")
    context = make(tmp_path, "stranger").pairing_client_context()

    client, server = handshake(context, worker.server_context(), PAIRING_NAME)

    assert client.getpeercert(binary_form=True) == worker.certificate_der
    assert worker.authenticate(server) is None


def test_older_versions_of_tls_are_refused(tmp_path: Path) -> None:
    worker = make(tmp_path, "worker")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises(ssl.SSLError):
        handshake(old, worker.server_context(), PAIRING_NAME)


def test_a_revoked_worker_is_refused_at_once_and_after_a_restart(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    master.revoke(worker.node_id)

    for identity in (master, make(tmp_path, "master")):
        with pytest.raises(UntrustedPeerError, match="was removed from this home"):
            dial(worker, identity, home)


def test_pairing_again_lifts_a_revocation(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    master.revoke(worker.node_id)

    join(master, worker)

    assert master.homes[home].revoked == frozenset()
    dial(worker, master, home)


def test_a_home_that_was_left_is_unknown(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    home = join(master, worker)
    server = worker.server_context()
    worker.remove_home(home)

    with pytest.raises(ssl.SSLError):
        handshake(master.client_context(home), server, tls_name(worker.node_id, home))
    with pytest.raises(IdentityError):
        worker.client_context(home)
    assert Identity.load(worker.folder).homes == {}


def test_a_second_process_sees_what_changed_after_reloading(tmp_path: Path) -> None:
    master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
    stage = Identity.load(worker.folder)
    server = stage.server_context()
    home = join(master, worker)

    stage.reload()

    name = tls_name(worker.node_id, home)
    _, end = handshake(master.client_context(home), server, name)
    assert stage.authenticate(end) == PeerIdentity(node_id=master.node_id, role="master", home=home)
