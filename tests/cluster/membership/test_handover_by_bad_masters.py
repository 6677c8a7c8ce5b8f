"""What a master cannot do to its helpers by handing its home over, and what fails harmlessly."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cluster import Run
from whole_nodes import eventually, folders_of, paired, running

from potluck.api.values.schema import ListenRequest, MainRequest, RoleRequest
from potluck.cluster.membership.handover_answers import MAX_HELPERS
from potluck.cluster.membership.handover_words import NOT_JOINED
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.node import Node
from potluck.errors import PairingError, PeerError, RemoteError
from potluck.ids import HomeId, NodeId
from potluck.net.link import Link
from potluck.wire.handover_messages import Follow, Followed, Known
from potluck.wire.messages import Address
from potluck.wire.token import Invites, PairingToken

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("no_engine")]

ELSEWHERE = Address(host="192.168.0.9", port=47777)  # where the master is, in these tests


def link_to_laptop(desk: Node) -> Link:
    (computer,) = desk.membership.connected()
    return computer.link


def joined(node: Node) -> int:
    return sum(home.role == "worker" for home in node.identity.homes.values())


async def token_of(node: Node) -> str:
    return (await node.backend.invite()).token


def token_for(*addresses: Address) -> str:
    return str(Invites(os.urandom).create(HomeId("ab" * 32), addresses, now=0))


def test_who_uses_its_own_home_is_not_taken_over_and_does_not_follow(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Friend")) as friend,
        ):
            await laptop.backend.set_role(RoleRequest(worker=False))
            (computer,) = desk.membership.connected()
            with pytest.raises(RemoteError, match=r"does not lend itself"):
                await computer.take_over()
            with pytest.raises(RemoteError, match=r"does not lend itself"):
                await computer.follow(await token_of(friend))
            with pytest.raises(RemoteError, match=r"not the main one in place"):
                await computer.invite(NodeId("9" * 64))
            assert laptop.identity.own_home is None
            assert joined(laptop) == 1

    run(main())


def test_a_token_of_a_hand_over_is_for_one_named_computer_and_few_are_named(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Thief")) as thief,
        ):
            (computer,) = desk.membership.connected()
            await computer.take_over()
            for named in (NodeId(f"{number:064x}") for number in range(MAX_HELPERS)):
                token = await computer.invite(named)
                assert await computer.invite(named) != token  # in place of it
            with pytest.raises(RemoteError, match=r"were named already"):
                await computer.invite(NodeId("9" * 64))
            await thief.backend.set_role(RoleRequest(worker=True))
            with pytest.raises(PairingError, match=r"token was used already"):
                await thief.backend.join(await computer.invite(NodeId("0" * 64)))
            assert not laptop.membership.records

            await desk.membership.forget(laptop.identity.node_id)
            await eventually(laptop, lambda: not joined(laptop))
            record = laptop.handover._record
            assert record is not None
            assert record.is_left  # nobody gets a token by that home any more

    run(main())


def test_a_master_learns_nothing_by_having_a_helper_follow(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            own = Address(host="127.0.0.1", port=laptop.presence.port())
            closed = Address(host="127.0.0.1", port=9)
            (here,) = laptop.links.masters()
            nearby = here.remote
            for remote in (ELSEWHERE, nearby):
                here.remote = remote
                for token in ("nonsense", token_for(), token_for(own), token_for(closed)):
                    with pytest.raises(RemoteError) as refused:
                        await link_to_laptop(desk).request(Follow(token=token), timeout_s=30)
                    assert refused.value.message == NOT_JOINED
            assert joined(laptop) == 1

    run(main())


def test_a_master_elsewhere_has_no_helper_dial_its_own_services(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Friend")) as friend,
        ):
            (here,) = laptop.links.masters()
            here.remote = ELSEWHERE  # the token is good, and of a node on the helper's computer
            with pytest.raises(RemoteError) as refused:
                await link_to_laptop(desk).request(
                    Follow(token=await token_of(friend)), timeout_s=30
                )
            assert refused.value.message == NOT_JOINED
            assert joined(laptop) == 1

    run(main())


def test_who_takes_over_has_the_master_dial_no_addresses_of_its_choice(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[object] = []

    async def main() -> None:
        async def service(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled.append(writer.get_extra_info("peername"))
            writer.close()

        server = await asyncio.start_server(service, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, paired(tmp_path) as (desk, laptop):

            async def take_over(*_: object) -> str:
                return token_for(Address(host="127.0.0.1", port=port))

            with monkeypatch.context() as patch:
                patch.setattr(RemoteComputer, "take_over", take_over)
                with pytest.raises(PeerError, match=r"could not join its home"):
                    await desk.backend.make_main(laptop.identity.node_id, MainRequest())
            assert not dialled
            assert desk.backend.role() == "master"

            take_over_there = RemoteComputer.take_over

            async def elsewhere(self: RemoteComputer, *known: Known) -> str:
                token = PairingToken.parse(await take_over_there(self, *known))
                return str(replace(token, addresses=(Address(host="127.0.0.1", port=port),)))

            monkeypatch.setattr(RemoteComputer, "take_over", elsewhere)
            await desk.backend.make_main(laptop.identity.node_id, MainRequest())
            assert not dialled
            assert desk.backend.role() == "worker"

    run(main())


def test_a_helper_follows_once_and_says_whom(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Friend")) as friend,
            running(folders_of(tmp_path, "Third")) as third,
        ):
            link = link_to_laptop(desk)
            for _ in range(2):  # it says so again
                told = await link.request(Follow(token=await token_of(friend)), timeout_s=30)
                assert isinstance(told, Followed)
            notices = [notice.text for notice in laptop.backend.state().notices]
            assert sum("Desk has made Friend the main computer" in n for n in notices) == 1
            with pytest.raises(RemoteError, match=r"It helps Friend, too"):
                await link.request(Follow(token=await token_of(third)), timeout_s=30)
            assert joined(laptop) == 2

    run(main())


def test_who_was_removed_while_it_was_off_joins_again(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Friend")) as friend,
        ):
            await laptop.backend.join(await token_of(friend))
            await eventually(friend, friend.membership.available)
            friend.membership._records.clear()  # and the laptop does not hear of it
            friend.identity.revoke(laptop.identity.node_id)
            await eventually(laptop, lambda: len(laptop.links.masters()) == 1)
            assert joined(laptop) == 2

            await link_to_laptop(desk).request(Follow(token=await token_of(friend)), timeout_s=30)
            await eventually(friend, friend.membership.available)

    run(main())


def test_listeners_are_closed_also_if_what_comes_after_the_hand_over_fails(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await desk.backend.listen(ListenRequest(host="127.0.0.1", port=0))

            async def full(_: object) -> None:
                raise OSError("disk full")

            monkeypatch.setattr(desk.handover, "_bring", full)
            with pytest.raises(OSError, match="disk full"):
                await desk.backend.make_main(laptop.identity.node_id, MainRequest())
            assert desk.backend.state().listeners == ()
            assert desk.backend.role() == "worker"

    run(main())
