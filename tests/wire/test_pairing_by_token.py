"""Pairing by token: who has the secret gets in, once; nobody else does."""

import os
from collections.abc import Callable

import msgspec
import pytest
from wire_pairs import NOW, Computer, exchange, kind, replaced

from potluck.wire import proofs
from potluck.wire.messages import Address, Message
from potluck.wire.pairing import Admitted, Member, PairingState
from potluck.wire.pairing_by_token import MasterByToken, WorkerByToken
from potluck.wire.pairing_messages import (
    Joined,
    PairAccept,
    PairClaim,
    PairJoin,
    PairOffer,
    PairRefuse,
)
from potluck.wire.token import INVITE_LIFETIME_S, Invites, PairingToken


@pytest.fixture
def headless() -> Computer:
    return Computer("Headless")


@pytest.fixture
def invites() -> Invites:
    return Invites(os.urandom)


@pytest.fixture
def token(invites: Invites, main: Computer) -> PairingToken:
    return invites.create(main.home_id, [Address(host="192.168.0.2", port=4242)], now=NOW)


def master_of(main: Computer, invites: Invites, now: float = NOW) -> MasterByToken:
    return of_home(main, main.authority, main.master, invites, now)


def of_home(
    computer: Computer, authority: bytes, certificate: bytes, invites: Invites, now: float = NOW
) -> MasterByToken:
    """The master's side of a computer that shows these certificates."""
    return MasterByToken(
        computer.me(),
        authority=authority,
        certificate=certificate,
        invites=invites,
        issue=computer.issue,
        now=now,
    )


def worker_of(computer: Computer, token: PairingToken, shown: Computer) -> WorkerByToken:
    return WorkerByToken(
        computer.me(), port=4000, token=token, peer_certificate=shown.certificate, now=NOW
    )


def test_the_worker_with_the_token_gets_its_certificate(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(worker, master, worker.start())

    node_id = proofs.node_id(headless.certificate)
    assert master.outcome == Admitted(node_id=node_id, name="Headless", port=4000)
    assert isinstance(worker.outcome, Member)
    assert worker.outcome.membership.authority == main.authority
    assert worker.outcome.master == proofs.node_id(main.certificate)
    assert worker.outcome.master_name == "Main"
    assert main.issued == [headless.certificate]
    assert master.state is worker.state is PairingState.PAIRED


def test_a_token_works_once(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    first = worker_of(headless, token, main)
    exchange(first, master_of(main, invites), first.start())
    master, second = master_of(main, invites), worker_of(Computer("Thief"), token, main)
    exchange(second, master, second.start())

    assert kind(master) == kind(second) == "token"
    assert "used already" in str(second.outcome)
    assert len(main.issued) == 1


def test_of_two_who_use_a_token_at_once_one_gets_in(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    masters = [master_of(main, invites), master_of(main, invites)]
    workers = [worker_of(headless, token, main), worker_of(Computer("Other"), token, main)]
    both = list(zip(masters, workers, strict=True))
    claims = [w.receive(m.receive(w.start()[0], NOW)[0], NOW) for m, w in both]
    for (master, worker), claim in zip(both, claims, strict=True):
        exchange(worker, master, claim)

    assert masters[0].state is PairingState.PAIRED
    assert kind(masters[1]) == kind(workers[1]) == "token"
    assert main.issued == [headless.certificate]


def test_a_token_expires(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    later = NOW + INVITE_LIFETIME_S
    master, worker = master_of(main, invites, later), worker_of(headless, token, main)
    exchange(worker, master, worker.start(), now=later)

    assert kind(master) == kind(worker) == "token"


def test_a_token_that_was_never_given_out_is_refused(
    main: Computer, headless: Computer, invites: Invites
) -> None:
    other = Invites(os.urandom).create(main.home_id, [], now=NOW)
    master, worker = master_of(main, invites), worker_of(headless, other, main)
    exchange(worker, master, worker.start())

    assert kind(master) == "token"


def test_a_wrong_secret_under_the_right_name_is_refused(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    """Who saw a `pair_join` knows the token's public name, and no more."""
    guess = msgspec.structs.replace
    impostor = PairingToken(home=token.home, secret=b"g" * 16, addresses=())
    master, worker = master_of(main, invites), worker_of(headless, impostor, main)
    carried = exchange(
        worker,
        master,
        worker.start(),
        alter=lambda m: guess(m, invite=token.invite) if isinstance(m, PairJoin) else m,
    )

    assert isinstance(carried[1], PairOffer)
    assert kind(worker) == "tampered"
    assert main.issued == []


def test_a_claim_without_the_secret_gets_nothing(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(
        worker,
        master,
        worker.start(),
        alter=lambda m: replaced(m, proof=b"p" * 32) if isinstance(m, PairClaim) else m,
    )

    assert kind(master) == "tampered"
    assert main.issued == []
    assert invites.secret(token.invite, now=NOW) is not None  # a guess does not use a token up


def test_the_masters_proof_is_none_of_the_worker(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    """Reflection: what the master has just proved is sent back to it as the worker's proof."""
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    proof: list[bytes] = []

    def reflect(message: Message) -> Message:
        if isinstance(message, PairOffer):
            proof.append(message.proof)
        return replaced(message, proof=proof[0]) if isinstance(message, PairClaim) else message

    exchange(worker, master, worker.start(), alter=reflect)

    assert kind(master) == "tampered"
    assert main.issued == []


def test_the_master_of_another_home_is_not_believed(
    headless: Computer, token: PairingToken
) -> None:
    """It even knows the secret."""
    stranger = Computer("Main")
    invites = Invites(lambda _: token.secret)
    invites.create(stranger.home_id, [], now=NOW)
    master, worker = master_of(stranger, invites), worker_of(headless, token, stranger)
    exchange(worker, master, worker.start())

    assert kind(worker) == "other_home"
    assert "another home" in str(worker.outcome)
    assert stranger.issued == []


def test_a_worker_of_the_home_does_not_pass_for_its_master(
    main: Computer, headless: Computer, token: PairingToken
) -> None:
    fellow = Computer("Fellow")
    invites = Invites(lambda _: token.secret)
    invites.create(main.home_id, [], now=NOW)
    membership = main.issue(fellow.certificate)
    master = of_home(fellow, main.authority, membership.certificate, invites)
    worker = worker_of(headless, token, fellow)
    exchange(worker, master, worker.start())

    assert kind(worker) == "tampered"


def test_a_home_that_signed_itself_only_in_name_is_not_believed(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    """The right authority, and a certificate that somebody else issued."""
    thief = Computer("Main")
    master = of_home(thief, main.authority, thief.master, invites)
    worker = worker_of(headless, token, thief)
    exchange(worker, master, worker.start())

    assert kind(worker) == "tampered"


def test_a_relay_with_its_own_certificate_fails(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    """TLS showed the worker the relay's certificate, not the master's."""
    relay = Computer("Relay")
    master, worker = master_of(main, invites), worker_of(headless, token, relay)
    exchange(worker, master, worker.start())

    assert kind(worker) == "tampered"
    assert main.issued == []


ALTERATIONS: dict[str, tuple[type[Message], Callable[[Message], Message]]] = {
    "the worker's name": (PairJoin, lambda m: replaced(m, name="H")),
    "the worker's nonce": (PairJoin, lambda m: replaced(m, nonce=b"n" * 32)),
    "the worker's port": (PairJoin, lambda m: replaced(m, port=4001)),
    "the offered versions": (PairJoin, lambda m: replaced(m, versions=(1, 0))),
    "the master's name": (PairOffer, lambda m: replaced(m, name="M")),
    "the master's nonce": (PairOffer, lambda m: replaced(m, nonce=b"n" * 32)),
    "the master's proof": (PairOffer, lambda m: replaced(m, proof=b"p" * 32)),
    "the master's certificate": (PairOffer, lambda m: replaced(m, certificate=b"c")),
    "the worker's signature": (PairClaim, lambda m: replaced(m, signature=b"s" * 70)),
    "the worker's certificate": (
        PairJoin,
        lambda m: replaced(m, certificate=Computer("Headless").certificate),
    ),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_whatever_is_altered_on_the_way_the_attempt_fails(
    what: str, main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    kind_of_message, change = ALTERATIONS[what]
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(
        worker,
        master,
        worker.start(),
        alter=lambda m: change(m) if isinstance(m, kind_of_message) else m,
    )

    assert kind(master) == kind(worker) == "tampered"
    assert main.issued == []


def test_a_certificate_of_another_home_is_not_taken_at_the_end(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    other = Computer("Other")
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(
        worker,
        master,
        worker.start(),
        alter=lambda m: replaced(m, authority=other.authority) if isinstance(m, Joined) else m,
    )

    assert kind(worker) == "other_home"


def test_versions_without_a_common_one_are_a_sentence(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    worker = WorkerByToken(
        headless.me((7,)), port=4000, token=token, peer_certificate=main.certificate, now=NOW
    )
    master = master_of(main, invites)
    exchange(worker, master, worker.start())

    assert kind(master) == kind(worker) == "version"


def test_a_version_nobody_offered_is_refused(
    main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(
        worker,
        master,
        worker.start(),
        alter=lambda m: replaced(m, version=9) if isinstance(m, PairOffer) else m,
    )

    assert kind(worker) == "version"


def test_a_worker_is_not_its_own_master(main: Computer, invites: Invites) -> None:
    token = invites.create(main.home_id, [], now=NOW)
    master, worker = master_of(main, invites), worker_of(main, token, main)
    exchange(worker, master, worker.start())

    assert kind(master) == "self"


@pytest.mark.parametrize("early", [PairAccept(), PairClaim(proof=b"p" * 32, signature=b"s")])
def test_messages_out_of_turn_end_the_attempt(
    early: Message, main: Computer, headless: Computer, invites: Invites, token: PairingToken
) -> None:
    worker = worker_of(headless, token, main)
    worker.start()
    for machine in (master_of(main, invites), worker):
        assert machine.receive(early, NOW) == [PairRefuse(kind="tampered")]
        assert kind(machine) == "tampered"


def test_a_silent_master_is_a_timeout(
    main: Computer, headless: Computer, token: PairingToken
) -> None:
    worker = worker_of(headless, token, main)
    worker.start()

    assert worker.tick(NOW + 9.9) == []
    assert worker.tick(NOW + 10) == [PairRefuse(kind="timed_out")]
    assert kind(worker) == "timed_out"


def test_a_token_for_one_computer_is_of_no_use_to_another(
    main: Computer, headless: Computer, invites: Invites
) -> None:
    thief = Computer("Thief")
    only = proofs.node_id(headless.certificate)
    before = invites.create(main.home_id, [], now=NOW, only=only)
    token = invites.create(main.home_id, [], now=NOW, only=only)

    for computer, each in ((thief, token), (headless, before)):
        master, worker = master_of(main, invites), worker_of(computer, each, main)
        exchange(worker, master, worker.start())
        assert kind(worker) == "token"
    assert main.issued == []

    master, worker = master_of(main, invites), worker_of(headless, token, main)
    exchange(worker, master, worker.start())
    assert isinstance(worker.outcome, Member)
