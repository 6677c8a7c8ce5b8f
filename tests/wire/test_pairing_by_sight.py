"""Pairing by sight: what two honest computers get."""

import re

import msgspec
import pytest
from wire_pairs import NOW, Computer, exchange, kind, master_by_sight, meet

from potluck.errors import PairingError
from potluck.wire import proofs
from potluck.wire.pairing import Admitted, Member, PairingState
from potluck.wire.pairing_by_sight import MasterBySight, WorkerBySight
from potluck.wire.pairing_messages import Joined, PairAccept, PairNonce, PairRefuse


def test_both_show_the_same_six_digits(master: MasterBySight, worker: WorkerBySight) -> None:
    meet(master, worker)

    assert master.state is worker.state is PairingState.COMPARING
    assert master.code is not None
    assert master.code == worker.code
    assert re.fullmatch(r"\d{3} \d{3}", master.code)
    assert (master.peer_name, worker.peer_name) == ("Laptop", "Main")


def test_the_digits_differ_from_attempt_to_attempt(main: Computer, laptop: Computer) -> None:
    codes: set[str | None] = set()
    for _ in range(3):
        master = master_by_sight(main, laptop)
        worker = WorkerBySight(laptop.me(), now=NOW)
        meet(master, worker)
        codes.add(master.code)

    assert len(codes) > 1  # all three alike: once in 10^12 runs


@pytest.mark.parametrize("master_is_first", [True, False])
def test_when_both_accept_the_worker_gets_its_certificate(
    master: MasterBySight,
    worker: WorkerBySight,
    main: Computer,
    laptop: Computer,
    master_is_first: bool,
) -> None:
    meet(master, worker)
    if master_is_first:
        exchange(master, worker, master.accept(NOW))
        exchange(worker, master, worker.accept(NOW))
    else:
        exchange(worker, master, worker.accept(NOW))
        exchange(master, worker, master.accept(NOW))

    assert main.issued == [laptop.certificate]
    assert master.outcome == Admitted(node_id=proofs.node_id(laptop.certificate), name="Laptop")
    assert isinstance(worker.outcome, Member)
    assert worker.outcome.membership.authority == main.authority
    assert worker.outcome.membership.home_name == "Main's home"
    assert worker.outcome.master == proofs.node_id(main.certificate)
    assert master.state is worker.state is PairingState.PAIRED


def test_when_both_accept_at_the_same_moment_they_are_paired(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    meet(master, worker)
    from_master, from_worker = master.accept(NOW), worker.accept(NOW)
    exchange(master, worker, from_master)
    exchange(worker, master, from_worker)

    assert master.state is worker.state is PairingState.PAIRED


def test_the_master_issues_nothing_before_its_own_user_accepted(
    master: MasterBySight, worker: WorkerBySight, main: Computer
) -> None:
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))

    assert master.state is PairingState.ACCEPTED_THERE
    assert main.issued == []


def test_the_master_issues_nothing_before_the_worker_accepted(
    master: MasterBySight, worker: WorkerBySight, main: Computer
) -> None:
    meet(master, worker)
    exchange(master, worker, master.accept(NOW))

    assert master.state is PairingState.ACCEPTED_HERE
    assert main.issued == []


def test_accepting_twice_or_too_early_changes_nothing(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    assert master.accept(NOW) == []
    meet(master, worker)
    assert master.accept(NOW) == [PairAccept()]
    assert master.accept(NOW) == []
    assert master.state is PairingState.ACCEPTED_HERE


def test_a_refusal_on_either_side_ends_both(
    master: MasterBySight, worker: WorkerBySight, main: Computer
) -> None:
    meet(master, worker)
    exchange(master, worker, master.accept(NOW))
    exchange(worker, master, worker.refuse())

    assert kind(master) == kind(worker) == "refused"
    assert "refused" in str(master.outcome)
    assert master.code is None
    assert main.issued == []


def test_the_master_may_refuse_too(master: MasterBySight, worker: WorkerBySight) -> None:
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))
    exchange(master, worker, master.refuse())

    assert kind(master) == kind(worker) == "refused"
    assert "You refused" in str(master.outcome)
    assert "other computer refused" in str(worker.outcome)


def test_nothing_happens_after_the_end(master: MasterBySight, worker: WorkerBySight) -> None:
    meet(master, worker)
    master.refuse()

    assert master.receive(PairAccept(), NOW) == []
    assert master.accept(NOW) == []
    assert master.refuse() == []
    assert master.tick(NOW + 1e6) == []


def test_programs_have_seconds_and_people_have_minutes(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    assert worker.deadline == NOW + 10
    meet(master, worker)
    assert master.deadline == worker.deadline == NOW + 120
    master.accept(NOW + 100)
    assert master.deadline == NOW + 120  # one span, however two people share it

    assert master.tick(NOW + 119.9) == []
    exchange(master, worker, master.tick(NOW + 120))

    assert kind(master) == kind(worker) == "timed_out"


def issue_to(worker: WorkerBySight, master: MasterBySight) -> None:
    """Up to where the certificate is on its way, and no word came back."""
    meet(master, worker)
    worker.receive(master.accept(NOW)[0], NOW)
    master.receive(worker.accept(NOW)[0], NOW)
    assert master.state is PairingState.ISSUED


@pytest.mark.parametrize("silence", ["connection lost", "no answer"])
def test_a_worker_that_may_have_its_certificate_is_admitted(
    silence: str, master: MasterBySight, worker: WorkerBySight, laptop: Computer
) -> None:
    issue_to(worker, master)

    if silence == "connection lost":
        master.lost()
    else:
        assert master.tick(master.deadline) == []

    assert master.outcome == Admitted(node_id=proofs.node_id(laptop.certificate), name="Laptop")
    assert master.state is PairingState.PAIRED


def test_a_worker_that_refuses_its_certificate_is_not_admitted(
    master: MasterBySight, worker: WorkerBySight, laptop: Computer
) -> None:
    issue_to(worker, master)
    master.receive(PairRefuse(kind="failed"), NOW)

    assert kind(master) == "failed"
    assert master.issued is not None  # for whoever has to revoke it
    assert master.issued.node_id == proofs.node_id(laptop.certificate)


def test_what_cannot_be_kept_did_not_come_about(
    master: MasterBySight, worker: WorkerBySight
) -> None:
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))
    exchange(master, worker, master.accept(NOW))
    assert isinstance(worker.outcome, Member)
    messages = worker.fail(PairingError("The disk is full.", kind="failed"))

    assert messages == [PairRefuse(kind="failed")]
    assert "The disk is full." in str(worker.outcome)
    assert worker.state is PairingState.FAILED


def test_a_connection_that_ends_is_an_outcome(worker: WorkerBySight) -> None:
    worker.lost()

    assert kind(worker) == "lost"


def test_versions_without_a_common_one_are_a_sentence(main: Computer, laptop: Computer) -> None:
    master = master_by_sight(main, laptop, versions=(1, 2))
    worker = WorkerBySight(laptop.me((3,)), now=NOW)
    carried = exchange(master, worker, master.start())

    assert kind(master) == kind(worker) == "version"
    assert "Update" in str(master.outcome)
    assert carried[-1] == PairRefuse(kind="version", versions=(3,))


def test_the_highest_common_version_is_chosen(main: Computer, laptop: Computer) -> None:
    master = master_by_sight(main, laptop, versions=(1, 2, 3))
    worker = WorkerBySight(laptop.me((2, 3, 4)), now=NOW)
    carried = exchange(master, worker, master.start())

    assert isinstance(carried[1], PairNonce)
    assert carried[1].version == 3
    assert master.code == worker.code


def test_a_version_nobody_offered_is_refused(master: MasterBySight) -> None:
    master.start()
    master.receive(PairNonce(version=9, name="Laptop", nonce=b"n" * 32), NOW)

    assert kind(master) == "version"


def test_a_computer_is_not_paired_with_itself(main: Computer) -> None:
    master = master_by_sight(main, main)

    assert master.start() == []
    assert kind(master) == "self"


def test_a_certificate_that_is_none_ends_the_attempt(main: Computer) -> None:
    master = MasterBySight(main.me(), peer_certificate=b"junk", issue=main.issue, now=NOW)

    assert master.start() == []
    assert isinstance(master.outcome, PairingError)


def test_a_home_that_cannot_issue_ends_the_attempt_on_both_sides(
    main: Computer, laptop: Computer, worker: WorkerBySight
) -> None:
    def fail(_: bytes) -> Joined:
        raise PairingError("No room.", kind="full")

    master = MasterBySight(main.me(), peer_certificate=laptop.certificate, issue=fail, now=NOW)
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))
    exchange(master, worker, master.accept(NOW))

    assert kind(master) == "full"
    assert kind(worker) == "failed"


def test_a_member_of_a_home_cannot_pass_it_off_as_its_own(
    main: Computer, laptop: Computer, worker: WorkerBySight
) -> None:
    """The member has the home's authority, the laptop's certificate of an earlier pairing, and the
    real master's certificate, which TLS shows to every member."""
    member = Computer("Member")
    real = main.issue(laptop.certificate)

    def hand_out(_: bytes) -> Joined:
        return real

    master = MasterBySight(
        member.me(), peer_certificate=laptop.certificate, issue=hand_out, now=NOW
    )
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))
    exchange(master, worker, master.accept(NOW))

    assert kind(worker) == kind(master) == "tampered"


def test_a_workers_certificate_does_not_prove_whose_home_it_is(
    main: Computer, laptop: Computer, worker: WorkerBySight
) -> None:
    member = Computer("Member")
    own = main.issue(member.certificate).certificate

    def hand_out(certificate: bytes) -> Joined:
        return msgspec.structs.replace(main.issue(certificate), master=own)

    master = MasterBySight(
        member.me(), peer_certificate=laptop.certificate, issue=hand_out, now=NOW
    )
    meet(master, worker)
    exchange(worker, master, worker.accept(NOW))
    exchange(master, worker, master.accept(NOW))

    assert kind(worker) == kind(master) == "tampered"
