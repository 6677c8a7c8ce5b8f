"""Two pairing desks over real TLS on loopback, and people who compare digits."""

from pathlib import Path
from typing import Any

import pytest
from fake_cluster import run, until
from pairing_sides import Side, Sides, comparing

from potluck.cluster.events import Notice
from potluck.errors import IdentityError, NotFoundError, UnreachableError
from potluck.net.homes import Home
from potluck.net.transport import dial_pairing
from potluck.wire.messages import Address, Message
from potluck.wire.pairing_by_sight import MasterBySight
from potluck.wire.pairing_messages import PairAccept, PairNonce, PairRefuse

pytestmark = pytest.mark.net


def test_both_see_the_same_digits_and_nothing_is_agreed_yet(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            there = laptop.desk.views()[0]

            assert asked.code == there.code
            assert asked.code is not None
            assert (asked.name, there.name) == ("Laptop", "Desk")
            assert (asked.role, there.role) == ("master", "worker")
            assert (asked.state, there.state) == ("confirm", "confirm")
            assert asked.node_id == laptop.identity.node_id
            assert there.node_id == desk.identity.node_id
            assert not laptop.identity.homes
            assert not desk.admitted

    run(main())


@pytest.mark.parametrize("order", ["master first", "worker first"])
def test_two_who_accept_are_paired(sides: Sides, order: str) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            first, second = (desk, laptop) if order == "master first" else (laptop, desk)
            view = await first.desk.decide(asked.id, True)
            assert view.state == "accepted"
            assert not desk.admitted
            await second.desk.decide(asked.id, True)
            await until(lambda: desk.admitted and laptop.joined)
            await until(lambda: desk.state == laptop.state == "paired")

            assert desk.admitted[0].node_id == laptop.identity.node_id
            assert laptop.joined[0].master_name == "Desk"
            assert laptop.homes_when_told == [1]
            assert laptop.knows(desk)

    run(main())


@pytest.mark.parametrize("who", ["Desk", "Laptop"])
def test_one_who_refuses_is_enough(sides: Sides, who: str) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            refuser, other = (desk, laptop) if who == "Desk" else (laptop, desk)
            await other.desk.decide(asked.id, True)
            view = await refuser.desk.decide(asked.id, False)
            assert view.state == "refused"
            await until(lambda: other.state in ("refused", "failed"))

            assert other.desk.views()[0].message
            assert not laptop.identity.homes
            assert not desk.admitted
            assert desk.desk.under_way(laptop.identity.node_id) is None

    run(main())


def test_people_who_never_answer_end_it(tmp_path: Path) -> None:
    desk, laptop = (Side(name, tmp_path, person_timeout_s=0.05) for name in ("Desk", "Laptop"))

    async def main() -> None:
        async with laptop.listening():
            await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
            await until(lambda: desk.state == laptop.state == "failed")
            assert not laptop.identity.homes

    run(main())


def test_a_connection_that_ends_ends_the_pairing(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            await desk.desk.ask([laptop.address])
            await until(lambda: laptop.links)
            laptop.links[0].close()
            await until(lambda: desk.state == laptop.state == "failed")

            assert "connection" in (desk.desk.views()[0].message or "")

    run(main())


def test_one_who_decides_after_the_end_changes_nothing(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            await laptop.desk.decide(asked.id, False)
            await until(lambda: desk.state == "refused")
            assert (await desk.desk.decide(asked.id, True)).state == "refused"
            with pytest.raises(NotFoundError):
                await desk.desk.decide("99", True)

    run(main())


def test_asking_twice_is_asking_once(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            first = await desk.desk.ask([laptop.address])
            again = await desk.desk.ask([laptop.address])
            assert again == first
            assert len(desk.desk.views()) == 1

    run(main())


def test_a_computer_that_does_not_offer_itself_refuses(sides: Sides) -> None:
    desk, laptop = sides
    laptop.joinable = False

    async def main() -> None:
        async with laptop.listening():
            view = await desk.desk.ask([laptop.address])
            assert view.state == "refused"
            assert view.code is None
            assert laptop.desk.views() == ()

    run(main())


def test_what_ended_is_forgotten_after_a_while(tmp_path: Path) -> None:
    desk, laptop = Side("Desk", tmp_path, keep_ended_s=0.0), Side("Laptop", tmp_path)
    laptop.joinable = False

    async def main() -> None:
        async with laptop.listening():
            await desk.desk.ask([laptop.address])
            await until(lambda: not desk.desk.views())

    run(main())


def test_a_computer_that_is_not_there_is_an_error(sides: Sides) -> None:
    desk, _ = sides

    async def main() -> None:
        with pytest.raises(UnreachableError):
            await desk.desk.ask([Address(host="127.0.0.1", port=1)])
        with pytest.raises(UnreachableError, match="No address"):
            await desk.desk.ask([])
        assert desk.desk.views() == ()

    run(main())


def test_the_second_address_is_tried_when_the_first_is_wrong(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            view = await desk.desk.ask([Address(host="127.0.0.1", port=1), laptop.address])
            assert view.code is not None

    run(main())


def test_one_who_says_nothing_leaves_nothing_behind(sides: Sides) -> None:
    _, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            link = await dial_pairing([laptop.address], sides[0].identity)
            link.close()
            await link.wait_closed()
            assert laptop.desk.views() == ()

    run(main())


def test_one_who_begins_with_something_else_is_refused(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            link = await dial_pairing([laptop.address], desk.identity)
            await link.send(PairAccept())
            assert isinstance(await link.receive(10), PairRefuse)
            link.close()

    run(main())


def test_a_master_that_leaves_before_there_are_digits_tries_twice(sides: Sides) -> None:
    """It has seen this computer's nonce, and so the digits, before anybody here sees anything."""
    desk, laptop = sides
    notices: list[Notice] = []
    laptop.desk._events.on(Notice, notices.append)

    async def begin() -> Message:
        link = await dial_pairing([laptop.address], desk.identity)
        assert link.peer_certificate is not None
        machine = MasterBySight(
            desk.desk._me(), peer_certificate=link.peer_certificate, issue=desk.desk._issue, now=0.0
        )
        await link.send(machine.start()[0])
        answer = await link.receive(10)
        link.close()
        await link.wait_closed()
        return answer

    async def main() -> None:
        async with laptop.listening():
            answers = [await begin() for _ in range(3)]
            assert [type(answer) for answer in answers] == [PairNonce, PairNonce, PairRefuse]
            (notice,) = notices
            assert "interfering" in notice.text

    run(main())


def test_both_people_read_that_it_could_not_be_stored(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, laptop = sides

    def broken(*_: object, **__: object) -> None:
        raise IdentityError("The key is damaged.")

    monkeypatch.setattr(laptop.identity, "add_home", broken)

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "failed")

            assert "The key is damaged." in (laptop.desk.views()[0].message or "")
            assert not desk.admitted
            assert not laptop.joined

    run(main())


def test_one_who_may_have_stored_it_is_listed(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends after the certificate and before the thanks."""
    desk, laptop = sides
    store = laptop.identity.add_home

    def store_and_vanish(**what: Any) -> Home:
        home = store(**what)
        for link in laptop.links:
            link.close()
        return home

    monkeypatch.setattr(laptop.identity, "add_home", store_and_vanish)

    async def main() -> None:
        async with comparing(desk, laptop) as asked:
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "paired")

            assert [a.node_id for a in desk.admitted] == [laptop.identity.node_id]

    run(main())
