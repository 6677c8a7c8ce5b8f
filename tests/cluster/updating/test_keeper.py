"""A newer version is installed once a person wants it, and never in the middle of an answer."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from releases import KEYS, make_archive, package, signed
from updated_computer import NEW, OWN, Computer, asked, done, heard, run, until

from potluck.api.values.update import UpdateRequest
from potluck.cluster.updating.keeper import UpdateKeeper
from potluck.errors import UsageError
from potluck.system.installation import Package, Updates
from potluck.update.trial import try_version
from potluck.update.versions import Versions

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")


def test_it_is_fetched_unpacked_tried_and_switched_to(computer: Computer, archive: Path) -> None:
    computer.publish(archive)

    state = asked(computer.keeper(), "install")

    assert state.phase == "switching"
    assert computer.used == NEW
    assert computer.restarts == 1
    phases = list(dict.fromkeys(state.phase for state in computer.states))
    assert phases == ["looking", "offered", "fetching", "trying", "waiting", "switching"]
    assert state.from_internet == archive.stat().st_size


def test_nothing_is_replaced_while_something_is_answered(computer: Computer, archive: Path) -> None:
    computer.publish(archive)
    computer.is_at_rest = False
    keeper = computer.keeper()

    async def working() -> str:
        await keeper.change(UpdateRequest(action="install"))
        await until(lambda: keeper.state.phase == "waiting")
        for _ in range(20):
            await asyncio.sleep(0.001)
        used = computer.used
        computer.is_at_rest = True
        await done(keeper)
        return used

    assert run(working) == OWN
    assert computer.used == NEW


def test_it_can_be_stopped_while_it_waits(computer: Computer, archive: Path) -> None:
    computer.publish(archive)
    computer.is_at_rest = False
    keeper = computer.keeper()

    async def stopping() -> None:
        await keeper.change(UpdateRequest(action="install"))
        await until(lambda: keeper.state.phase == "waiting")
        await keeper.change(UpdateRequest(action="stop"))

    run(stopping)

    assert (keeper.state.phase, computer.used) == ("offered", OWN)
    assert keeper.known.to_tell == b""  # nor do the others install it


def test_an_answer_that_begins_while_it_is_switched_is_not_cut(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = _answering_from_the_switch_on(computer, archive, monkeypatch)

    async def working() -> int:
        await keeper.change(UpdateRequest(action="install"))
        await until(lambda: computer.used == NEW)
        for _ in range(20):
            await asyncio.sleep(0.001)
        restarts = computer.restarts
        computer.is_at_rest = True
        await done(keeper)
        return restarts

    assert run(working) == 0
    assert (computer.used, computer.restarts) == (NEW, 1)


def test_one_that_is_stopped_after_the_switch_is_switched_back(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = _answering_from_the_switch_on(computer, archive, monkeypatch)

    async def stopping() -> None:
        await keeper.change(UpdateRequest(action="install"))
        await until(lambda: computer.used == NEW)
        await keeper.change(UpdateRequest(action="stop"))
        await done(keeper)

    run(stopping)

    assert (computer.used, computer.restarts) == (OWN, 0)
    assert Versions(computer.root, OWN).failed is None


def _answering_from_the_switch_on(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> UpdateKeeper:
    computer.publish(archive)
    switch = Versions.switch

    def switched(versions: Versions, version: str) -> None:
        computer.is_at_rest = False
        switch(versions, version)

    monkeypatch.setattr(Versions, "switch", switched)
    return computer.keeper()


def test_the_newest_is_installed_and_not_the_one_that_was_known(
    computer: Computer, archive: Path, tmp_path: Path
) -> None:
    computer.publish(archive)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.publish(make_archive(tmp_path / "newer", "99.1.0"), "99.1.0")

    assert asked(keeper, "install").version == "99.1.0"
    assert computer.used == "99.1.0"


def test_the_one_that_is_known_is_installed_while_the_list_cannot_be_had(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.server.statuses = [500]

    assert asked(keeper, "install").phase == "switching"
    assert computer.used == NEW


def test_one_that_another_node_of_this_installation_has_switched_to_is_started(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)
    keeper, other = computer.keeper(), computer.keeper()
    asked(other, "install")

    assert asked(keeper, "install").phase == "switching"
    assert Versions(computer.root, OWN).before == OWN


def test_a_package_that_is_not_the_listed_one_is_refused(computer: Computer, archive: Path) -> None:
    computer.publish(archive)
    size = archive.stat().st_size
    computer.server.files[f"/potluck-{NEW}.tar.xz"] = bytes(size)

    state = asked(computer.keeper(), "install")

    assert state.failed
    assert (state.phase, computer.used, computer.restarts) == ("offered", OWN, 0)


def test_one_that_does_not_start_is_not_switched_to(computer: Computer, tmp_path: Path) -> None:
    computer.publish(make_archive(tmp_path / "bad", NEW, code="raise SystemExit(1)"))
    computer.try_version = try_version
    keeper = computer.keeper()

    state = asked(keeper, "install")

    assert state.failed
    assert "does not start on this computer" in state.message
    assert computer.used == OWN
    assert keeper.known.to_tell == b""


def test_a_package_of_the_system_is_fetched_and_its_owner_told_how(
    computer: Computer, archive: Path
) -> None:
    listed = package(archive, NEW, computer.server.address)
    deb = msgspec.structs.replace(listed, kind="deb", name=f"potluck_{NEW}_amd64.deb")
    computer.server.files["/release.json"] = signed(NEW, deb)
    computer.server.files[f"/potluck-{NEW}.tar.xz"] = archive.read_bytes()
    updates = Updates(f"{computer.server.address}/release.json", KEYS)
    keeper = computer.keeper(Package(computer.root / "tree", "deb", OWN, updates))
    computer.folder.mkdir()
    (computer.folder / "potluck_98.0.0_amd64.deb").touch()

    state = asked(keeper, "install")

    placed = computer.folder / f"potluck_{NEW}_amd64.deb"
    assert state.phase == "fetched"
    assert f"sudo apt install {placed}" in state.message
    assert placed.read_bytes() == archive.read_bytes()
    assert list(computer.folder.glob("*.deb")) == [placed]
    envelope = computer.server.files["/release.json"]
    assert keeper.known.to_tell == envelope
    run(lambda: heard(keeper, envelope))  # from a main computer, which tells again and again
    assert keeper.state == state


def test_a_release_without_a_package_for_this_computer_is_said(computer: Computer) -> None:
    computer.server.files["/release.json"] = signed(NEW)

    state = asked(computer.keeper(), "install")

    assert state.failed
    assert "no package for this computer" in state.message


def test_a_checkout_says_how_it_is_updated(computer: Computer) -> None:
    tree = Package(computer.root / "nowhere", "tar", OWN, computer.package.updates)
    keeper = computer.keeper(tree)

    assert keeper.state.phase == "manual"
    with pytest.raises(UsageError, match=r"install\.sh"):
        asked(keeper, "install")
