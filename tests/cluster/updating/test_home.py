"""A home and its newer version: its main computer tells of it, and each computer judges by itself."""

import sys
from pathlib import Path

import pytest
from releases import ISSUED, STRANGER, installed, make_archive, package, signed
from updated_computer import NEW, OWN, Computer, asked, heard, run

from potluck.api.values.update import HomesVersion
from potluck.errors import IntegrityError
from potluck.ids import Digest
from potluck.update.versions import Versions

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")


def test_a_computer_follows_its_main_computer_if_its_owner_has_allowed_it(
    computer: Computer, archive: Path
) -> None:
    envelope = computer.publish(archive)
    keeper = computer.keeper()

    assert "asks its owner" in run(lambda: heard(keeper, envelope))
    assert (keeper.state.phase, computer.used) == ("offered", OWN)
    computer.is_allowed = True
    assert "updates, too" in run(lambda: heard(keeper, envelope))
    assert computer.used == NEW


def test_a_main_computer_with_an_older_list_is_told_so_unless_it_names_the_same_version(
    computer: Computer, archive: Path, tmp_path: Path
) -> None:
    """That one is built anew, say, so the newer list has another package of it: that is installed."""
    old, other = computer.publish(archive), computer.publish(archive, "98.0.0")
    computer.is_allowed = True
    computer.publish(make_archive(tmp_path / "anew", NEW, code="# anew"), issued=ISSUED + 1)
    keeper = computer.keeper()
    asked(keeper, "check")

    assert "Somebody may hold the newer one back" in run(lambda: heard(keeper, other))
    assert run(lambda: heard(keeper, signed("0.0.1"))) == ""  # what nobody needs is no reproach
    assert computer.used == OWN
    assert "updates, too" in run(lambda: heard(keeper, old))
    assert computer.used == NEW


def test_a_main_computer_with_a_newer_list_tells_that_a_version_was_taken_back(
    computer: Computer, archive: Path
) -> None:
    keeper = computer.keeper()

    assert run(lambda: heard(keeper, signed("0.0.1", package(archive, "0.0.1")))) == ""

    assert f"taken version {OWN} back" in keeper.state.message


def test_a_main_computer_makes_no_release_up(computer: Computer, archive: Path) -> None:
    computer.is_allowed = True
    keeper = computer.keeper()

    with pytest.raises(IntegrityError):
        run(lambda: heard(keeper, signed(NEW, package(archive, NEW), key=STRANGER)))
    assert run(lambda: heard(keeper, signed("0.0.1", package(archive, "0.0.1")))) == ""
    assert computer.used == OWN


def test_a_version_that_did_not_come_up_is_said_and_not_installed_again_by_itself(
    computer: Computer, archive: Path
) -> None:
    envelope = computer.publish(archive)
    asked(computer.keeper(), "install")
    Versions(computer.root, OWN).go_back("It ended at once.")
    computer.is_allowed = True
    keeper = computer.keeper()

    assert keeper.state.failed
    assert "did not start on this computer" in keeper.state.message
    assert run(lambda: heard(keeper, envelope)) == keeper.state.message
    assert computer.used == OWN
    assert keeper.known.to_tell == b""


def test_the_home_is_told_once_its_main_computer_runs_the_new_version(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = computer.publish(archive)
    keeper = computer.keeper()
    asked(keeper, "install")
    assert keeper.known.to_tell == b""  # it may not come up

    monkeypatch.setattr("potluck.cluster.updating.keeper.__version__", NEW)
    monkeypatch.setattr("potluck.cluster.updating.known.__version__", NEW)
    keeper = computer.keeper(installed(computer.root, NEW))

    assert keeper.known.to_tell == envelope
    assert set(keeper.known.listed()) == {Digest(package(archive, NEW).sha256)}
    keeper.tells({"a": HomesVersion(name="attic", version=NEW)})
    assert [each.name for each in keeper.state.computers] == ["attic"]
