"""Two pairing desks over real TLS on loopback."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import run, until

from potluck.cluster import pairing as pairing_module
from potluck.cluster.pairing import PairingDesk
from potluck.errors import (
    IdentityError,
    NotFoundError,
    PairingError,
    PotluckError,
    UnreachableError,
)
from potluck.net.homes import Home
from potluck.net.identity import Identity
from potluck.net.pairing_link import PairingLink
from potluck.net.transport import Listener, dial_pairing
from potluck.wire import pairing as machine_module
from potluck.wire.messages import Address, NodeInfo
from potluck.wire.pairing import Admitted, Member
from potluck.wire.pairing_messages import PairAccept, PairRefuse
from potluck.wire.token import PairingToken

pytestmark = pytest.mark.net


class Side:
    """A computer as far as pairing goes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.identity = Identity.load_or_create(folder / name, name)
        self.joinable = True
        self.admitted: list[Admitted] = []
        self.addresses: list[Address] = []  # where who was admitted listens
        self.joined: list[Member] = []
        self.homes_when_told: list[int] = []  # how many were stored when `joined` was called
        self.changes = 0
        self.port = 4711  # until it listens
        self.links: list[PairingLink] = []
        self.desk = PairingDesk(
            self.identity,
            name=lambda: self.name,
            port=lambda: self.port or 4000,
            may_join=lambda: self.joinable,
            admitted=self._on_admitted,
            joined=self._on_joined,
            changed=self._changed,
        )

    def _on_admitted(self, admitted: Admitted, address: Address) -> None:
        self.admitted.append(admitted)
        self.addresses.append(address)

    def _on_joined(self, member: Member) -> None:
        self.joined.append(member)
        self.homes_when_told.append(len(self.identity.homes))

    def _changed(self) -> None:
        self.changes += 1

    async def _serve(self, link: PairingLink) -> None:
        self.links.append(link)
        await self.desk.serve(link)

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Side", None]:
        me = NodeInfo(
            node_id=self.identity.node_id, name=self.name, version="0", os="Linux", arch="x"
        )

        async def no_link(link: object) -> None:
            raise AssertionError("nobody is a member here")

        async with Listener(
            self.identity, me=lambda: me, on_link=no_link, on_pairing=self._serve, host="127.0.0.1"
        ) as listener:
            self.port = listener.port
            yield self

    @property
    def state(self) -> str:
        return self.desk.views()[-1].state

    def knows(self, other: "Side") -> bool:
        return any(home.master == other.identity.node_id for home in self.identity.homes.values())


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Side, Side]:
    """A master to be, and a worker to be."""
    return Side("Desk", tmp_path), Side("Laptop", tmp_path)


Sides = tuple[Side, Side]


# --- by sight


def test_both_see_the_same_digits_and_nothing_is_agreed_yet(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views() and laptop.desk.views()[0].code)
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
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
            first, second = (desk, laptop) if order == "master first" else (laptop, desk)
            view = await first.desk.decide(asked.id, True)
            assert view.state == "accepted"
            assert not desk.admitted
            await second.desk.decide(asked.id, True)
            await until(lambda: desk.admitted and laptop.joined)
            await until(lambda: desk.state == laptop.state == "paired")

            assert desk.admitted[0].node_id == laptop.identity.node_id
            assert laptop.joined[0].master == desk.identity.node_id
            assert laptop.homes_when_told == [1]
            assert laptop.knows(desk)

    run(main())


@pytest.mark.parametrize("who", ["Desk", "Laptop"])
def test_one_who_refuses_is_enough(sides: Sides, who: str) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
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


def test_people_who_never_answer_end_it(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "PERSON_TIMEOUT_S", 0.05)
    desk, laptop = sides

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
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
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


def test_what_ended_is_forgotten_after_a_while(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing_module, "KEEP_ENDED_S", 0.0)
    desk, laptop = sides
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


# --- by token


def token_of(master: Side) -> PairingToken:
    token, expires_s = master.desk.invite([master.address])
    assert expires_s > 0
    return PairingToken.parse(token)


def test_a_token_pairs_without_a_person(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with desk.listening(), laptop.listening():
            member = await laptop.desk.join(token_of(desk), [])
            await until(lambda: desk.admitted)

            assert member.master == desk.identity.node_id
            assert member.master_name == "Desk"
            assert laptop.knows(desk)
            assert laptop.homes_when_told == [1]
            assert desk.admitted[0].name == "Laptop"
            assert desk.addresses == [laptop.address]
            assert desk.desk.views() == laptop.desk.views() == ()

    run(main())


def test_a_token_is_good_once(sides: Sides, tmp_path: Path) -> None:
    desk, laptop = sides
    mac = Side("Mac", tmp_path)

    async def main() -> None:
        async with desk.listening():
            token = token_of(desk)
            await laptop.desk.join(token, [])
            with pytest.raises(PairingError, match="used already"):
                await mac.desk.join(token, [])
            assert not mac.identity.homes
            assert len(desk.admitted) == 1

    run(main())


def test_of_two_who_come_with_one_token_at_once_one_is_let_in(sides: Sides, tmp_path: Path) -> None:
    desk, laptop = sides
    mac = Side("Mac", tmp_path)

    async def main() -> None:
        async with desk.listening():
            token = token_of(desk)
            results = await asyncio.gather(
                laptop.desk.join(token, []), mac.desk.join(token, []), return_exceptions=True
            )
            assert sum(isinstance(result, Member) for result in results) == 1
            assert sum(isinstance(result, PairingError) for result in results) == 1
            await until(lambda: desk.admitted)
            assert len(desk.admitted) == 1

    run(main())


def test_another_home_at_that_address_is_not_joined(sides: Sides, tmp_path: Path) -> None:
    desk, laptop = sides
    impostor = Side("Impostor", tmp_path)

    async def main() -> None:
        async with desk.listening(), impostor.listening():
            token = token_of(desk)
            impostor.desk.invite([impostor.address])  # it has a home, of its own
            with pytest.raises(PotluckError):
                await laptop.desk.join(
                    PairingToken(
                        home=token.home, secret=token.secret, addresses=(impostor.address,)
                    ),
                    [],
                )
            assert not laptop.identity.homes
            assert not impostor.admitted

    run(main())


def test_one_without_a_home_admits_nobody(sides: Sides, tmp_path: Path) -> None:
    desk, laptop = sides
    homeless = Side("Homeless", tmp_path)

    async def main() -> None:
        async with desk.listening(), homeless.listening():
            token = token_of(desk)
            elsewhere = PairingToken(
                home=token.home, secret=token.secret, addresses=(homeless.address,)
            )
            with pytest.raises(PairingError):
                await laptop.desk.join(elsewhere, [])
            assert not laptop.identity.homes

    run(main())


def test_a_master_that_is_off_is_an_error(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with desk.listening():
            token = token_of(desk)
        with pytest.raises(UnreachableError):
            await laptop.desk.join(token, [])

    run(main())


def test_who_was_removed_and_pairs_again_is_forgiven(sides: Sides) -> None:
    desk, laptop = sides

    async def main() -> None:
        async with desk.listening():
            await laptop.desk.join(token_of(desk), [])
            await until(lambda: desk.admitted)
            desk.identity.revoke(laptop.identity.node_id)
            await laptop.desk.join(token_of(desk), [])
            await until(lambda: len(desk.admitted) == 2)

            home = desk.identity.own_home
            assert home is not None
            assert laptop.identity.node_id not in home.revoked

    run(main())


def test_what_cannot_be_stored_is_not_said_to_have_succeeded(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's disk is full: the master must not count on a member that knows nothing of it."""
    desk, laptop = sides

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(laptop.identity, "add_home", full)

    async def main() -> None:
        async with desk.listening():
            with pytest.raises(PairingError, match="No space"):
                await laptop.desk.join(token_of(desk), [])
            home = desk.identity.own_home
            assert home is not None
            await until(lambda: laptop.identity.node_id in desk.identity.revoked(home.home_id))
            assert not laptop.joined
            assert not laptop.identity.homes
            assert not desk.admitted

    run(main())


def test_both_people_read_that_it_could_not_be_stored(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, laptop = sides

    def broken(*_: object, **__: object) -> None:
        raise IdentityError("The key is damaged.")

    monkeypatch.setattr(laptop.identity, "add_home", broken)

    async def main() -> None:
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "failed")

            assert "The key is damaged." in (laptop.desk.views()[0].message or "")
            assert not desk.admitted
            assert not laptop.joined

    run(main())


def test_a_master_that_cannot_issue_says_so(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, laptop = sides

    def full(_: bytes) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk.identity, "issue", full)

    async def main() -> None:
        async with desk.listening():
            with pytest.raises(PairingError):
                await laptop.desk.join(token_of(desk), [])
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "failed")
            assert "No space" in (desk.desk.views()[0].message or "")

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
        async with laptop.listening():
            asked = await desk.desk.ask([laptop.address])
            await until(lambda: laptop.desk.views())
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "paired")

            assert [a.node_id for a in desk.admitted] == [laptop.identity.node_id]

    run(main())
