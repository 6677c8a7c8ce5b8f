"""Whole nodes in one process: a helper becomes the main computer, and the others help it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fake_cluster import Run
from whole_nodes import SPLIT, chat, eventually, folders_of, join, load, paired, running, seen

from potluck.api.values.schema import ComputerChange, MainRequest, PlanRequest, RoleRequest
from potluck.cluster.membership import handover
from potluck.cluster.membership.handover_record import read_record
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.node import Node
from potluck.errors import (
    BusyError,
    NotFoundError,
    PeerError,
    PeerLostError,
    RemoteError,
    UsageError,
)
from potluck.settings import Folders
from potluck.wire.handover_messages import Follow, Invite

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]

NOW = MainRequest()
computing_nothing = pytest.mark.usefixtures("no_engine")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a minute until somebody follows."""
    monkeypatch.setattr("potluck.cluster.node.FOLLOW_S", 0.05)
    monkeypatch.setattr(handover, "AGAIN_S", 0.05)


async def main_is(main: Node, helper: Node) -> None:
    """Wait until one computer is the main one, and the other one helps it."""
    await eventually(main, lambda: [c.node_id for c in main.membership.available()])
    assert helper.identity.node_id in {c.node_id for c in main.membership.available()}
    assert main.backend.role() == "master"
    assert helper.backend.role() == "worker"


def said(node: Node) -> str:
    return "\n".join(notice.text for notice in node.backend.state().notices)


def fails(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(RemoteComputer, name, fail)


def test_a_helper_becomes_the_main_computer_answers_and_gives_it_back(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await load(desk, SPLIT)
            expected = await chat(desk)

            done = await desk.backend.make_main(laptop.identity.node_id, NOW)

            assert (done.name, done.to_follow) == ("Laptop", ())
            assert not desk.master.holds_anything
            assert laptop.worker.lease is None
            await main_is(laptop, desk)
            assert desk.backend.state().node.handed_over == "helper"
            assert laptop.backend.state().node.handed_over == "main"
            assert "Desk has made this computer the main computer" in said(laptop)
            assert "removed" not in said(laptop)
            assert "stopped answering" not in said(desk) + said(laptop)
            assert not desk.membership.records
            assert desk.backend.state().node.member_of == ("Laptop",)
            assert laptop.backend.state().node.member_of == ()
            turned = PlanRequest(layers=(("Laptop", 2), ("Desk", 4)), context=128)
            await load(laptop, turned)
            assert await chat(laptop) == expected

            await laptop.backend.make_main(desk.identity.node_id, NOW)

            await main_is(desk, laptop)
            await load(desk, SPLIT)
            assert await chat(desk) == expected

    run(main())


@computing_nothing
def test_other_helpers_follow_and_one_that_is_off_when_it_is_back(tmp_path: Path, run: Run) -> None:
    attic_folders = folders_of(tmp_path, "Attic")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            desk, laptop = await stack.enter_async_context(paired(tmp_path))
            shed = await stack.enter_async_context(running(folders_of(tmp_path, "Shed")))
            await helps(desk, shed, 2)
            async with running(attic_folders) as attic:
                await helps(desk, attic, 3)
            await eventually(desk, lambda: len(desk.membership.connected()) == 2)

            done = await desk.backend.make_main(laptop.identity.node_id, NOW)

            assert done.to_follow == ("Attic",)
            await eventually(laptop, lambda: len(laptop.membership.available()) == 2)
            assert shed.backend.state().node.member_of == ("Laptop",)
            assert "Desk has made Laptop the main computer in its place" in said(shed)
            assert "removed" not in said(shed)

            attic = await stack.enter_async_context(running(attic_folders))
            await eventually(laptop, lambda: len(laptop.membership.available()) == 3)
            await eventually(desk, lambda: not desk.membership.records)
            await eventually(laptop, lambda: laptop.backend.state().node.member_of == ())
            assert attic.backend.state().node.member_of == ("Laptop",)

    run(main())


def test_names_colours_and_limits_stay_as_they_were_chosen(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            desk, laptop = await stack.enter_async_context(paired(tmp_path))
            shed = await stack.enter_async_context(running(folders_of(tmp_path, "Shed")))
            await helps(desk, shed, 2)
            laptop.lending.rename(None)  # nobody there gave it a name
            change = ComputerChange(name="Garden", memory=3 << 30)
            await desk.backend.change_computer(shed.identity.node_id, change)
            change = ComputerChange(name="Kitchen", memory=5 << 30)
            await desk.backend.change_computer(laptop.identity.node_id, change)
            colours = {n: r.color for n, r in desk.membership.records.items()}

            await desk.backend.make_main(laptop.identity.node_id, NOW)
            await eventually(laptop, lambda: len(laptop.membership.available()) == 2)

            records = laptop.membership.records
            garden = records[shed.identity.node_id]
            assert (garden.shown, garden.name, garden.memory) == ("Garden", "Shed", 3 << 30)
            assert garden.color == colours[shed.identity.node_id]
            assert records[desk.identity.node_id].color == colours[laptop.identity.node_id]
            assert laptop.presence.name() == "Kitchen"
            assert laptop.lending.saved.memory_limit == 5 << 30
            assert {c.name for c in laptop.membership.connected()} == {"Desk", "Garden"}

    run(main())


async def helps(desk: Node, other: Node, count: int) -> None:
    await other.backend.set_role(RoleRequest(worker=True))
    await other.backend.join((await desk.backend.invite()).token)
    await eventually(desk, lambda: len(desk.membership.available()) == count)


@computing_nothing
def test_a_computer_that_is_off_or_a_stranger_does_not_take_over(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Desk")) as desk:
            async with running(folders_of(tmp_path, "Laptop")) as laptop:
                await laptop.backend.set_role(RoleRequest(worker=True))
                await join(desk, laptop)
            await eventually(desk, lambda: not desk.membership.connected())

            with pytest.raises(NotFoundError, match=r"Laptop is not connected.* stays the main"):
                await desk.backend.make_main(laptop.identity.node_id, NOW)
            with pytest.raises(NotFoundError, match=r"not one of this home"):
                await desk.backend.make_main("0" * 64, NOW)
            assert desk.backend.role() == "master"

    run(main())


@computing_nothing
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RemoteError("?", kind="unknown_op"), "Laptop runs an older Potluck.*Update it there."),
        (PeerLostError("gone"), "Laptop stopped answering before it took over."),
        (RemoteError("It helps Ann, too."), "Laptop did not take over. It helps Ann, too."),
    ],
)
def test_a_computer_that_does_not_take_over_leaves_all_as_it_was(
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    sentence: str,
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            with monkeypatch.context() as patch:
                fails(patch, "take_over", error)
                with pytest.raises(PeerError, match=f"{sentence}.*stays the main computer"):
                    await desk.backend.make_main(laptop.identity.node_id, NOW)
            await main_is(desk, laptop)

            await desk.backend.make_main(laptop.identity.node_id, NOW)
            await main_is(laptop, desk)

    run(main())


@computing_nothing
def test_one_that_took_over_in_vain_takes_over_when_it_is_asked_again(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):

            async def not_there(*_: object) -> None:
                raise PeerLostError("Nothing answers there.")

            join_there = desk.handover._parts.join
            object.__setattr__(desk.handover._parts, "join", not_there)
            with pytest.raises(
                PeerError, match=r"Laptop is ready .*Nothing answers.*stays the main"
            ):
                await desk.backend.make_main(laptop.identity.node_id, NOW)
            assert {desk.backend.role(), laptop.backend.role()} == {"master"}  # both, never none

            object.__setattr__(desk.handover._parts, "join", join_there)
            await desk.backend.make_main(laptop.identity.node_id, NOW)
            await main_is(laptop, desk)

    run(main())


@computing_nothing
def test_a_token_of_a_third_computers_home_is_not_kept(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Stranger")) as stranger,
        ):
            token = (await stranger.backend.invite()).token

            async def take_over(*_: object) -> str:
                return token

            monkeypatch.setattr(RemoteComputer, "take_over", take_over)
            with pytest.raises(PeerError, match=r"could not join its home"):
                await desk.backend.make_main(laptop.identity.node_id, NOW)
            assert desk.backend.state().node.member_of == ()
            assert desk.backend.role() == "master"

    run(main())


@computing_nothing
def test_twice_is_once_and_a_helper_makes_nobody_main(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            once, twice = await asyncio.gather(
                desk.backend.make_main(laptop.identity.node_id, NOW),
                desk.backend.make_main(laptop.identity.node_id, NOW),
                return_exceptions=True,
            )
            assert not isinstance(once, BaseException)
            assert isinstance(twice, BusyError)
            again = await desk.backend.make_main(laptop.identity.node_id, NOW)
            assert again.name == "Laptop"
            with pytest.raises(UsageError, match=r"Laptop is the main computer now"):
                await desk.backend.make_main("0" * 64, NOW)

    run(main())


def test_answers_under_way_are_stopped_only_knowingly(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await load(desk, SPLIT)
            with desk.at_hand.turn(None):
                with pytest.raises(BusyError, match=r"An answer is under way"):
                    await desk.backend.make_main(laptop.identity.node_id, NOW)
                assert desk.master.holds_anything
                asked = MainRequest(stop_answers=True)
                await desk.backend.make_main(laptop.identity.node_id, asked)
            await main_is(laptop, desk)

    run(main())


@computing_nothing
def test_a_restart_in_the_middle_goes_on(tmp_path: Path, run: Run) -> None:
    """The roles are written after what was handed over: whoever was killed between sees to it."""

    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await desk.backend.make_main(laptop.identity.node_id, NOW)
            await main_is(laptop, desk)
            desk.lending.set_role(RoleRequest(worker=False))  # as it was before the handover
            laptop.lending.set_role(RoleRequest(worker=True))
        async with (
            running(folders_of_before(tmp_path, "Desk")) as desk,
            running(folders_of_before(tmp_path, "Laptop")) as laptop,
        ):
            await eventually(laptop, lambda: laptop.backend.role() == "master")
            await eventually(desk, lambda: desk.backend.role() == "worker")

    run(main())


def folders_of_before(base: Path, name: str) -> Folders:
    return Folders.of(base / name)


@computing_nothing
def test_the_owner_of_either_computer_has_the_last_word(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await desk.backend.make_main(laptop.identity.node_id, NOW)
            await laptop.backend.set_role(RoleRequest(worker=True))
            await desk.backend.set_role(RoleRequest(worker=False))
            for node in (desk, laptop):
                assert node.backend.state().node.handed_over is None
                await node.handover.look()
            assert (desk.backend.role(), laptop.backend.role()) == ("master", "worker")

    run(main())


def test_who_helps_another_home_too_is_not_taken_from_it(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with (
            paired(tmp_path) as (desk, laptop),
            running(folders_of(tmp_path, "Friend")) as friend,
        ):
            await load(desk, SPLIT)
            await laptop.backend.join((await friend.backend.invite()).token)
            with pytest.raises(PeerError, match=r"Laptop did not take over. It helps Friend, too."):
                await desk.backend.make_main(laptop.identity.node_id, NOW)
            assert laptop.backend.role() == "worker"
            assert desk.master.holds_anything  # it was asked before anything was unloaded

    run(main())


@computing_nothing
@pytest.mark.parametrize("message", [Invite(node_id="9" * 64), Follow(token="nonsense")])
def test_a_worker_gives_no_token_unasked_and_follows_no_nonsense(
    tmp_path: Path, run: Run, message: Invite | Follow
) -> None:
    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            (computer,) = desk.membership.connected()
            with pytest.raises(RemoteError, match=r"not the main one|cannot be joined from here"):
                await computer.link.request(message, timeout_s=10)
            assert laptop.identity.own_home is None
            assert seen(desk, "Laptop") is not None

    run(main())


def test_a_damaged_record_is_as_none(tmp_path: Path) -> None:
    file = tmp_path / "handover.json"
    for text in ("", "{", '{"became": "king"}'):
        file.write_text(text)
        assert read_record(file) is None
