"""What a node does about newer versions by itself, once it runs: nothing without consent."""

import asyncio
import dataclasses
import sys
import threading
from pathlib import Path

import pytest
from releases import EXPIRES, ISSUED, installed
from updated_computer import (
    NEW,
    OWN,
    PATIENCE_S,
    Computer,
    asked,
    done,
    run,
    until,
)

from potluck.api.values.update import Update, UpdateRequest
from potluck.cluster.updating.keeper import DAY_S, UpdateKeeper
from potluck.update.versions import Versions

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")


async def _looked(keeper: UpdateKeeper) -> None:
    keeper.look_if_due()
    await done(keeper)


def test_nobody_is_asked_before_it_is_allowed(computer: Computer, archive: Path) -> None:
    computer.publish(archive)
    keeper = computer.keeper()

    run(lambda: _looked(keeper))
    assert computer.server.asked == []
    computer.is_allowed = True
    run(lambda: _looked(keeper))
    assert len(computer.server.asked) == 1
    run(lambda: _looked(keeper))  # not twice a day
    assert len(computer.server.asked) == 1
    computer.now -= 2 * DAY_S  # the clock was ahead when it looked: not never again
    run(lambda: _looked(keeper))
    assert len(computer.server.asked) == 2


def test_a_computer_without_the_internet_says_nothing_of_a_look_that_nobody_asked_for(
    computer: Computer, caplog: pytest.LogCaptureFixture
) -> None:
    computer.is_allowed = True
    keeper = computer.keeper(computer.without_a_server)
    caplog.set_level("INFO")

    run(lambda: _looked(keeper))

    assert "no look for a newer version" in caplog.text
    assert (keeper.state.phase, keeper.state.failed) == ("quiet", False)
    assert computer.states == []


def test_a_look_that_nobody_asked_for_gives_way_to_a_person(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)
    computer.is_allowed = True
    keeper = computer.keeper()
    go_on, asked_for = threading.Event(), list[str]()

    def newest(index: str) -> bytes:
        asked_for.append(index)
        if len(asked_for) == 1:
            go_on.wait(PATIENCE_S)
        return computer.server.files["/release.json"]

    keeper._here = dataclasses.replace(keeper._here, newest=newest)

    async def asking() -> Update:
        keeper.look_if_due()
        await until(lambda: bool(asked_for))
        await keeper.change(UpdateRequest(action="check"))
        state = await done(keeper)
        go_on.set()
        return state

    assert run(asking).phase == "offered"
    assert len(asked_for) == 2


def test_a_look_that_nobody_asked_for_leaves_what_was_said_of_a_version_that_was_left(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)
    asked(computer.keeper(), "install")
    Versions(computer.root, OWN).go_back("I liked the old one.", by_owner=True)
    computer.is_allowed, computer.now = True, computer.now + 2 * DAY_S
    keeper = computer.keeper()
    before, count = keeper.state, len(computer.server.asked)

    run(lambda: _looked(keeper))

    assert before.left
    assert keeper.state == before
    assert len(computer.server.asked) == count + 1


def test_a_newer_list_that_is_held_back_is_said_once_and_asked_for_once_a_day(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive, issued=ISSUED + 1)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.publish(archive)
    computer.is_allowed, computer.now = True, computer.now + 2 * DAY_S
    computer.states.clear()
    computer.server.asked.clear()

    for _ in range(2):
        run(lambda: _looked(keeper))
    assert len(computer.server.asked) == 1
    computer.now += DAY_S
    run(lambda: _looked(keeper))

    assert len(computer.server.asked) == 2
    (state,) = computer.states
    assert state.failed
    assert "Somebody may hold the newer one back" in state.message


def test_a_computer_that_has_had_no_list_for_too_long_says_so(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive, OWN)
    asked(computer.keeper(), "check")
    computer.is_allowed, computer.now = True, EXPIRES + 1.0
    keeper = computer.keeper(computer.without_a_server)

    run(lambda: _looked(keeper))

    assert keeper.state.failed
    assert "the last one was good until 2100-01-01" in keeper.state.message


def test_a_version_that_runs_has_come_up(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.publish(archive)
    asked(computer.keeper(), "install")
    monkeypatch.setattr("potluck.cluster.updating.keeper.__version__", NEW)
    monkeypatch.setattr("potluck.cluster.updating.known.__version__", NEW)
    keeper = computer.keeper(installed(computer.root, NEW))

    async def starting() -> None:
        task = asyncio.create_task(keeper.start())
        state = computer.root / "versions" / "state.json"
        await until(lambda: f'"trying": "{NEW}"' not in state.read_text())
        task.cancel()

    run(starting)
    assert keeper.state.before == OWN
    assert asked(keeper, "back").phase == "switching"
    assert computer.used == OWN
    monkeypatch.undo()
    back = computer.keeper().state
    assert (back.phase, back.failed, back.left) == ("offered", False, True)
    assert f"went back from Potluck {NEW}" in back.message
    again = asked(computer.keeper(), "back")
    assert (again.failed, computer.used) == (True, OWN)
    assert f"{NEW} was left already, and no version before {OWN} is" in again.message
