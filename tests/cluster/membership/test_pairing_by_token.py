"""Two pairing desks over real TLS on loopback, and tokens."""

import asyncio
from pathlib import Path

import pytest
from fake_cluster import run, until
from pairing_sides import Side, Sides, comparing, token_of

from potluck.errors import PairingError, PotluckError, UnreachableError
from potluck.wire.pairing import Member
from potluck.wire.token import PairingToken

pytestmark = pytest.mark.net


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
            with pytest.raises(PairingError, match="disk is full"):
                await laptop.desk.join(token_of(desk), [])
            home = desk.identity.own_home
            assert home is not None
            await until(
                lambda: laptop.identity.node_id in desk.identity.homes[home.home_id].revoked
            )
            assert not laptop.joined
            assert not laptop.identity.homes
            assert not desk.admitted

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
        async with comparing(desk, laptop) as asked:
            await desk.desk.decide(asked.id, True)
            await laptop.desk.decide(asked.id, True)
            await until(lambda: desk.state == laptop.state == "failed")
            assert "disk is full" in (desk.desk.views()[0].message or "")

    run(main())
