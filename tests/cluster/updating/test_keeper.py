"""What a node does about newer versions: nothing without consent, and nothing that is not signed."""

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from releases import (
    EXPIRES,
    ISSUED,
    KEYS,
    STRANGER,
    installed,
    make_archive,
    make_root,
    make_tree,
    package,
    signed,
)
from wheel_server import WheelServer, serving

import potluck
from potluck.api.values.update import HomesVersion, Update, UpdateRequest
from potluck.cluster.runtime.fetching import WheelFetcher
from potluck.cluster.runtime.sharing import WheelClient
from potluck.cluster.updating.here import Here
from potluck.cluster.updating.keeper import DAY_S, UpdateKeeper
from potluck.errors import IntegrityError, UsageError
from potluck.ids import Digest
from potluck.net.identity import Identity
from potluck.runtime.download import Internet, Patience
from potluck.store.chunks import ChunkStore
from potluck.system.installation import Package, Updates
from potluck.update.trial import try_version
from potluck.update.versions import Versions
from potluck.wire.messages import NodeInfo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")
OWN, NEW = potluck.__version__, "99.0.0"
PATIENCE_S = 30.0


class Computer:
    """A computer with a package that is installed, and a server of releases on loopback."""

    def __init__(self, folder: Path, server: WheelServer) -> None:
        self.server = server
        self.root = make_root(folder / "potluck", OWN)
        self.package = installed(self.root, OWN, index=f"{server.address}/release.json")
        self.store = ChunkStore(folder / "wheels", 1 << 30, reserve=0)
        self.is_allowed, self.is_at_rest, self.restarts = False, True, 0
        self.now = ISSUED + DAY_S
        self.folder = folder / "updates"
        self.states: list[Update] = []
        # As if it had started: a process that imports all of Potluck takes two seconds.
        self.try_version: Callable[..., None] = lambda tree, version, stopped: None

    def keeper(self, package: Package | None = None) -> UpdateKeeper:
        """What a node that is started now knows."""
        identity = Identity.load_or_create(self.folder.parent / "identity", "desk")
        client = WheelClient(identity, me=_nobody, store=self.store)
        patience = Patience(silent_s=5, attempts=3, pause_s=0.01)
        fetcher = WheelFetcher(
            self.store,
            client,
            sources=lambda: (),
            internet=Internet(self.store, patience=patience),
        )
        here = Here(
            installed=package or self.package,
            folder=self.folder,
            is_allowed=lambda: self.is_allowed,
            allow=lambda on: setattr(self, "is_allowed", on),
            is_at_rest=lambda: self.is_at_rest,
            restart=lambda: setattr(self, "restarts", self.restarts + 1),
            machine="x86_64",
            system="linux",
            try_version=lambda *about: self.try_version(*about),
            clock=lambda: self.now,
            rest_s=0.0,
            poll_s=0.001,
        )
        keeper = UpdateKeeper(
            here, self.store, fetcher=fetcher, changed=lambda: self.states.append(keeper.state)
        )
        return keeper

    def publish(self, archive: Path, version: str = NEW, *, issued: int = ISSUED) -> bytes:
        """Have the server publish a release; returns its envelope."""
        listed = package(archive, version, self.server.address)
        envelope = signed(version, listed, issued=issued)
        self.server.files["/release.json"] = envelope
        self.server.files[f"/potluck-{version}.tar.xz"] = archive.read_bytes()
        return envelope

    @property
    def used(self) -> str:
        return (self.root / "tree").readlink().name


def _nobody() -> NodeInfo:
    raise AssertionError("nobody is dialled")


@pytest.fixture
def computer(tmp_path: Path) -> Generator[Computer]:
    with serving(WheelServer()) as server:
        computer = Computer(tmp_path, server)
        yield computer
        computer.store.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "made", NEW)


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await work()

    return asyncio.run(bounded())


async def done(keeper: UpdateKeeper) -> Update:
    await until(lambda: not keeper.is_busy)
    return keeper.state


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


def asked(keeper: UpdateKeeper, action: Any) -> Update:
    """The state after something was asked for, and done."""

    async def asking() -> Update:
        await keeper.change(UpdateRequest(action=action))
        return await done(keeper)

    return run(asking)


def test_a_look_finds_the_newer_version_and_fetches_nothing_of_it(
    computer: Computer, archive: Path
) -> None:
    computer.publish(archive)

    state = asked(computer.keeper(), "check")

    assert (state.phase, state.version, state.failed) == ("offered", NEW, False)
    assert len(computer.server.asked) == 1
    assert computer.keeper().state.phase == "offered"  # also after the node was started again


def test_it_is_fetched_unpacked_tried_and_switched_to(computer: Computer, archive: Path) -> None:
    computer.publish(archive)

    state = asked(computer.keeper(), "install")

    assert state.phase == "switching"
    assert computer.used == NEW
    assert computer.restarts == 1
    phases = list(dict.fromkeys(state.phase for state in computer.states))
    assert phases == ["looking", "offered", "fetching", "trying", "waiting", "switching"]
    assert state.from_internet == archive.stat().st_size


def test_a_download_that_is_cut_goes_on_where_it_was(computer: Computer, archive: Path) -> None:
    computer.publish(archive)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.server.cut_after, computer.server.cuts = (
        archive.stat().st_size // 2,
        2,
    )  # the list, too

    assert asked(keeper, "install").phase == "switching"
    assert any(each.startswith("bytes=") for each in computer.server.asked)


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
    gone = installed(computer.root, OWN, index="http://127.0.0.1:9/release.json")

    state = asked(computer.keeper(gone), "check")

    assert state.failed
    assert "does not answer" in state.message


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


def test_a_main_computer_with_a_newer_list_tells_that_a_version_was_taken_back(
    computer: Computer, archive: Path
) -> None:
    keeper = computer.keeper()

    assert run(lambda: _heard(keeper, signed("0.0.1", package(archive, "0.0.1")))) == ""

    assert f"taken version {OWN} back" in keeper.state.message


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


def test_an_older_list_than_the_last_one_is_refused(computer: Computer, archive: Path) -> None:
    computer.publish(archive, issued=ISSUED + 1)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.publish(archive, "98.0.0")

    state = asked(keeper, "check")

    assert (state.phase, state.version, state.failed) == ("offered", NEW, True)
    assert "Somebody may hold the newer one back" in state.message


async def _started(keeper: UpdateKeeper) -> None:
    """Have a node's keeper start, look if it is due, and be done."""
    task = asyncio.create_task(keeper.start())
    for _ in range(50):
        await asyncio.sleep(0.001)
    task.cancel()
    await done(keeper)


def test_nobody_is_asked_before_it_is_allowed(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.publish(archive)
    keeper = computer.keeper()

    async def starting() -> None:
        await _started(keeper)

    run(starting)
    assert computer.server.asked == []
    computer.is_allowed = True
    run(starting)
    assert len(computer.server.asked) == 1
    run(starting)  # not twice a day
    assert len(computer.server.asked) == 1
    computer.now -= 2 * DAY_S  # the clock was ahead when it looked: not never again
    run(starting)
    assert len(computer.server.asked) == 2


def test_a_computer_without_the_internet_says_nothing_of_a_look_that_nobody_asked_for(
    computer: Computer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.is_allowed = True
    keeper = computer.keeper(installed(computer.root, OWN, index="http://127.0.0.1:9/release.json"))
    caplog.set_level("INFO")

    async def starting() -> None:
        task = asyncio.create_task(keeper.start())
        await until(lambda: "no look for a newer version" in caplog.text)
        await done(keeper)
        task.cancel()

    run(starting)

    assert (keeper.state.phase, keeper.state.failed) == ("quiet", False)
    assert computer.states == []


def test_a_look_that_nobody_asked_for_gives_way_to_a_person(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
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
        task = asyncio.create_task(keeper.start())
        await until(lambda: bool(asked_for))
        await keeper.change(UpdateRequest(action="check"))
        state = await done(keeper)
        go_on.set()
        task.cancel()
        return state

    assert run(asking).phase == "offered"
    assert len(asked_for) == 2


def test_a_look_that_nobody_asked_for_leaves_what_was_said_of_a_version_that_was_left(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.publish(archive)
    asked(computer.keeper(), "install")
    Versions(computer.root, OWN).go_back("I liked the old one.", by_owner=True)
    computer.is_allowed, computer.now = True, computer.now + 2 * DAY_S
    keeper = computer.keeper()
    before, count = keeper.state, len(computer.server.asked)

    run(lambda: _started(keeper))

    assert before.left
    assert keeper.state == before
    assert len(computer.server.asked) == count + 1


def test_a_newer_list_that_is_held_back_is_said_once_and_asked_for_once_a_day(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.publish(archive, issued=ISSUED + 1)
    keeper = computer.keeper()
    asked(keeper, "check")
    computer.publish(archive)
    computer.is_allowed, computer.now = True, computer.now + 2 * DAY_S
    computer.states.clear()
    computer.server.asked.clear()

    for _ in range(2):
        run(lambda: _started(keeper))
    assert len(computer.server.asked) == 1
    computer.now += DAY_S
    run(lambda: _started(keeper))

    assert len(computer.server.asked) == 2
    (state,) = computer.states
    assert state.failed
    assert "Somebody may hold the newer one back" in state.message


def test_a_computer_that_has_had_no_list_for_too_long_says_so(
    computer: Computer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.updating.keeper.UP_S", 0.0)
    computer.publish(archive, OWN)
    asked(computer.keeper(), "check")
    computer.is_allowed, computer.now = True, EXPIRES + 1.0
    keeper = computer.keeper(installed(computer.root, OWN, index="http://127.0.0.1:9/release.json"))

    async def starting() -> None:
        task = asyncio.create_task(keeper.start())
        await until(lambda: keeper.state.failed)
        task.cancel()

    run(starting)

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
    assert run(lambda: _heard(keeper, envelope)) == keeper.state.message
    assert computer.used == OWN
    assert keeper.known.to_tell == b""


async def _heard(keeper: UpdateKeeper, envelope: bytes) -> str:
    said = keeper.heard(envelope)
    await done(keeper)
    return said


def test_a_computer_follows_its_main_computer_if_its_owner_has_allowed_it(
    computer: Computer, archive: Path
) -> None:
    envelope = computer.publish(archive)
    keeper = computer.keeper()

    assert "asks its owner" in run(lambda: _heard(keeper, envelope))
    assert (keeper.state.phase, computer.used) == ("offered", OWN)
    computer.is_allowed = True
    assert "updates, too" in run(lambda: _heard(keeper, envelope))
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

    assert "Somebody may hold the newer one back" in run(lambda: _heard(keeper, other))
    assert run(lambda: _heard(keeper, signed("0.0.1"))) == ""  # what nobody needs is no reproach
    assert computer.used == OWN
    assert "updates, too" in run(lambda: _heard(keeper, old))
    assert computer.used == NEW


def test_a_main_computer_makes_no_release_up(computer: Computer, archive: Path) -> None:
    computer.is_allowed = True
    keeper = computer.keeper()

    with pytest.raises(IntegrityError):
        run(lambda: _heard(keeper, signed(NEW, package(archive, NEW), key=STRANGER)))
    assert run(lambda: _heard(keeper, signed("0.0.1", package(archive, "0.0.1")))) == ""
    assert computer.used == OWN


def test_the_home_is_told_once_its_owner_wants_it_and_it_is_here_and_good(
    computer: Computer, archive: Path
) -> None:
    envelope = computer.publish(archive)
    keeper = computer.keeper()
    told: list[bytes] = []
    computer.try_version = lambda *_: told.append(keeper.known.to_tell)
    asked(keeper, "check")
    assert keeper.known.to_tell == b""

    asked(keeper, "install")

    assert told == [b""]
    assert keeper.known.to_tell == envelope
    assert set(keeper.known.listed()) == {Digest(package(archive, NEW).sha256)}
    keeper.tells({"a": HomesVersion(name="attic", version=NEW)})
    assert [each.name for each in keeper.state.computers] == ["attic"]


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
    run(lambda: _heard(keeper, envelope))  # from a main computer, which tells again and again
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
