"""What a look for a newer version finds: only what the project has signed, and not too long ago."""

import sys
from pathlib import Path

import pytest
from releases import EXPIRES, STRANGER, make_tree, package, signed
from updated_computer import NEW, OWN, Computer, asked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")


def test_a_look_finds_the_newer_version_and_fetches_nothing_of_it(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)

    state = asked(computer.keeper(), "check")

    assert (state.phase, state.version, state.failed) == ("offered", NEW, False)
    assert len(computer.server.asked) == 1
    assert computer.keeper().state.phase == "offered"  # also after the node was started again


def test_the_release_that_runs_is_the_newest(computer: Computer, archive: Path) -> None:
    computer.publish(archive, OWN)

    state = asked(computer.keeper(), "check")

    assert (state.phase, state.version) == ("quiet", OWN)
    assert state.message == "This is the newest version of Potluck."


def test_a_version_that_was_taken_back_is_no_newest_one_and_can_be_gone_back_from(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive, "0.0.1")
    keeper = computer.keeper()

    state = asked(keeper, "check")

    assert (state.phase, state.version, state.before) == ("quiet", "", "")
    assert state.message.startswith(
        f"The makers of Potluck have taken version {OWN} back: the newest one is 0.0.1 again."
    )
    assert "install 0.0.1 by hand" in state.message
    make_tree(computer.root / "versions" / "0.0.1", "0.0.1")
    state = computer.keeper().state  # also after the node was started again
    assert state.before == "0.0.1"
    assert "Go back to 0.0.1" in state.message


def test_a_list_that_nobody_trusted_has_signed_is_refused(
    computer: Computer, archive: Path
) -> None:
    listed = package(archive, NEW, computer.server.address)
    computer.server.files["/release.json"] = signed(NEW, listed, key=STRANGER)

    state = asked(computer.keeper(), "check")

    assert state.failed
    assert "not signed by the makers" in state.message
    assert computer.keeper().known.listed() == {}


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_has_no_list_is_named(computer: Computer, status: int) -> None:
    computer.server.statuses = [status]

    state = asked(computer.keeper(), "check")

    assert state.failed
    assert f"status {status}" in state.message


def test_a_server_that_is_not_there_is_named(computer: Computer) -> None:
    state = asked(computer.keeper(computer.without_a_server), "check")

    assert state.failed
    assert "does not answer" in state.message


def test_a_list_that_is_sent_again_for_ever_is_seen_when_it_has_ended(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)
    keeper = computer.keeper()
    assert asked(keeper, "check").phase == "offered"

    computer.now = EXPIRES + 1.0

    for action in ("check", "install"):
        state = asked(keeper, action)
        assert (state.phase, state.failed, computer.used) == ("quiet", True, OWN)
        assert "good until 2100-01-01" in state.message
    assert keeper.known.to_tell == b""
