"""Pairing by sight: what somebody between the two computers gets."""

from collections.abc import Callable

import pytest
from wire_pairs import NOW, Computer, exchange, kind, master_by_sight, meet, over_the_wire, replaced

from potluck.wire import proofs
from potluck.wire.messages import Message
from potluck.wire.pairing import PairingState
from potluck.wire.pairing_by_sight import MasterBySight, WorkerBySight
from potluck.wire.pairing_messages import (
    Joined,
    PairAccept,
    PairBegin,
    PairDone,
    PairNonce,
    PairProof,
    PairRefuse,
    PairReveal,
)

ALTERATIONS: dict[str, tuple[type[Message], Callable[[Message], Message]]] = {
    "the master's name": (PairBegin, lambda m: replaced(m, name="Mai")),
    "the offered versions": (PairBegin, lambda m: replaced(m, versions=(1, 0))),
    "the master's certificate": (
        PairBegin,
        lambda m: replaced(m, certificate=Computer("Main").certificate),
    ),
    "the commitment": (PairBegin, lambda m: replaced(m, commitment=b"c" * 32)),
    "the worker's name": (PairNonce, lambda m: replaced(m, name="Lap")),
    "the worker's nonce": (PairNonce, lambda m: replaced(m, nonce=b"n" * 32)),
    "the master's nonce": (PairReveal, lambda m: replaced(m, nonce=b"n" * 32)),
    "the master's signature": (PairReveal, lambda m: replaced(m, signature=b"s" * 70)),
    "the worker's signature": (PairProof, lambda m: replaced(m, signature=b"s" * 70)),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_whatever_is_altered_on_the_way_the_attempt_fails(
    what: str, master: MasterBySight, worker: WorkerBySight, main: Computer
) -> None:
    kind_of_message, change = ALTERATIONS[what]
    exchange(
        master,
        worker,
        master.start(),
        alter=lambda m: change(m) if isinstance(m, kind_of_message) else m,
    )

    assert kind(master) == kind(worker) == "tampered"
    assert "interfering" in str(master.outcome)
    assert main.issued == []


def test_a_relay_with_its_own_certificate_makes_the_digits_differ(
    main: Computer, laptop: Computer
) -> None:
    """The relay plays the worker to the master and the master to the worker, each rightly."""
    relay = Computer("Laptop")
    relay.name = "Laptop"
    master = master_by_sight(main, relay)
    towards_master = WorkerBySight(relay.me(), now=NOW)
    relay.name = "Main"
    towards_worker = master_by_sight(relay, laptop)
    worker = WorkerBySight(laptop.me(), now=NOW)
    meet(master, towards_master)
    meet(towards_worker, worker)

    assert master.state is worker.state is PairingState.COMPARING
    assert master.code != worker.code  # alike once in a million runs


def test_a_relay_that_forwards_everything_fails_without_the_certificate(
    main: Computer, worker: WorkerBySight
) -> None:
    """TLS showed the master the relay's certificate; the worker signed with its own."""
    relay = Computer("Laptop")
    master = master_by_sight(main, relay)
    meet(master, worker)

    assert kind(master) == kind(worker) == "tampered"


def test_a_master_that_hears_its_own_words_fails(master: MasterBySight, main: Computer) -> None:
    (begin,) = master.start()
    master.receive(over_the_wire(begin), NOW)

    assert kind(master) == "tampered"
    assert main.issued == []


def test_a_worker_that_hears_its_own_proof_fails(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    """A reflected proof was made in another role, over another certificate."""
    carried: list[Message] = []
    exchange(master, worker, master.start(), alter=lambda m: carried.append(m) or m)
    proof = next(m for m in carried if isinstance(m, PairProof))
    again = worker.receive(proof, NOW)

    assert kind(worker) == "tampered"
    assert again == [PairRefuse(kind="tampered")]


def test_the_masters_signature_is_no_proof_of_the_workers(
    main: Computer, laptop: Computer, master: MasterBySight, worker: WorkerBySight
) -> None:
    """The same key, the same transcript, the other role."""
    seen = b"t" * 32
    signature = main.me().sign(proofs.to_sign("master", seen))

    proofs.check_signature(main.certificate, "master", seen, signature)
    with pytest.raises(proofs.ProofError):
        proofs.check_signature(main.certificate, "worker", seen, signature)


def test_a_proof_of_an_earlier_attempt_is_of_no_use(
    main: Computer, laptop: Computer, master: MasterBySight, worker: WorkerBySight
) -> None:
    recorded: list[Message] = []
    exchange(master, worker, master.start(), alter=lambda m: recorded.append(m) or m)
    _, nonce, _, proof = recorded
    second = master_by_sight(main, laptop)
    second.start()
    second.receive(nonce, NOW)
    second.receive(proof, NOW)

    assert kind(second) == "tampered"


@pytest.mark.parametrize(
    "early",
    [
        PairAccept(),
        PairDone(),
        PairProof(signature=b"x"),
        PairReveal(nonce=b"n" * 32, signature=b"x"),
    ],
)
def test_messages_out_of_turn_end_the_attempt(
    early: Message, master: MasterBySight, worker: WorkerBySight
) -> None:
    master.start()
    for machine in (master, worker):
        machine.receive(early, NOW)
        assert kind(machine) == "tampered"


def test_a_certificate_that_nobody_here_accepted_is_not_taken(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    meet(master, worker)
    worker.receive(PairAccept(), NOW)
    worker.receive(Joined(home_name="h", authority=b"a", certificate=b"c", master=b"m"), NOW)

    assert kind(worker) == "tampered"
