"""Versions beside each other: switched to, counted while they have not come up, and left again."""

import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from releases import installed, make_archive, make_root, make_tree

from potluck.errors import IntegrityError, PotluckError, StoreError
from potluck.runtime.stopping import StoppedError
from potluck.system.installation import Package
from potluck.update import archive
from potluck.update.trial import TrialError, try_version
from potluck.update.versions import MOST_STARTS, Versions, started
from potluck.update.ways import CHECKOUT, NO_RELEASES, OLD_FOLDER, how_to_install, way

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")


class StartError(PotluckError):
    """It does not come up."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "potluck", "1.0.0")


def versions(root: Path, own: str = "1.0.0") -> Versions:
    return Versions(root, own)


def with_new(root: Path) -> Versions:
    """A second version, which was switched to."""
    old = versions(root)
    make_tree(old.new("2.0.0"), "2.0.0")
    old.add("2.0.0")
    old.switch("2.0.0")
    return old


def test_the_link_leads_to_the_version_that_was_switched_to(root: Path) -> None:
    old = with_new(root)

    assert old.current == "2.0.0"
    assert old.python == root / "versions/2.0.0/python/bin/python3"
    assert (root / "tree" / "potluck.json").read_text().count("2.0.0") == 1
    assert old.is_on_trial
    assert old.before == "1.0.0"


def test_one_that_came_up_is_on_trial_no_more_and_the_one_before_stays(root: Path) -> None:
    with_new(root)
    make_tree(root / "versions" / "0.9.0", "0.9.0")

    versions(root, "2.0.0").came_up()

    assert not versions(root, "2.0.0").is_on_trial
    assert versions(root, "2.0.0").before == "1.0.0"
    assert sorted(p.name for p in (root / "versions").iterdir() if p.is_dir()) == ["1.0.0", "2.0.0"]


def test_a_tree_that_a_process_runs_from_stays(root: Path) -> None:
    with_new(root)
    used = make_tree(root / "versions" / "0.9.0", "0.9.0")
    program = used / "python" / "bin" / "cat"
    shutil.copy(str(shutil.which("cat")), program)

    with subprocess.Popen([program], stdin=subprocess.PIPE):  # until its input ends
        versions(root, "2.0.0").came_up()
        with pytest.raises(StoreError, match="still runs"):
            versions(root, "2.0.0").add("0.9.0")

    assert used.is_dir()


def test_what_another_node_unpacks_or_is_about_to_switch_to_stays(root: Path) -> None:
    with_new(root)
    unpacked = make_tree(root / "versions" / ".new-4.0.0", "4.0.0")
    added = make_tree(root / "versions" / "3.0.0", "3.0.0")

    versions(root, "2.0.0").came_up()

    assert unpacked.is_dir()
    assert added.is_dir()


def test_only_one_unpacks_at_a_time_and_one_that_waits_can_be_stopped(root: Path) -> None:
    def stop() -> None:
        raise StoppedError

    with (
        versions(root).unpacking(),
        pytest.raises(StoppedError),
        versions(root).unpacking(stop),
    ):
        pass
    with versions(root).unpacking(stop):
        pass


def test_a_version_that_is_gone_is_not_switched_to(root: Path) -> None:
    with pytest.raises(StoreError, match="was deleted"):
        versions(root).switch("2.0.0")
    assert versions(root).current == "1.0.0"


def test_a_switch_can_be_undone(root: Path) -> None:
    old = versions(root)
    before = old.used
    with_new(root)

    old.use(before)

    assert old.used == before


def test_the_old_one_that_still_runs_does_not_call_the_new_one_good(root: Path) -> None:
    old = with_new(root)

    old.came_up()

    assert old.is_on_trial


def test_one_that_does_not_come_up_is_left_and_the_one_before_starts(root: Path) -> None:
    old = with_new(root)
    tried: list[str] = []

    def start() -> str:
        tried.append(old.current)
        if old.current == "2.0.0":
            raise StartError("It ended at once.")
        return "up"

    assert started(start, old, StartError) == "up"
    assert tried == ["2.0.0", "1.0.0"]
    assert old.failed is not None
    assert (old.failed.version, old.failed.why) == ("2.0.0", "It ended at once.")
    assert not old.is_on_trial


def test_one_that_takes_its_starter_with_it_is_left_after_a_few_starts(root: Path) -> None:
    old = with_new(root)

    for _ in range(MOST_STARTS):
        with pytest.raises(KeyboardInterrupt):  # nobody hears how it ended
            started(_interrupt, old, StartError)
        assert old.current == "2.0.0"

    assert started(lambda: old.current, old, StartError) == "1.0.0"


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_one_that_has_come_up_once_is_not_left_when_it_fails_later(root: Path) -> None:
    with_new(root)
    new = versions(root, "2.0.0")
    new.came_up()

    def start() -> None:
        raise StartError("The disk is full.")

    with pytest.raises(StartError):
        started(start, new, StartError)
    assert new.current == "2.0.0"


def test_its_owner_can_go_back(root: Path) -> None:
    with_new(root)
    new = versions(root, "2.0.0")
    new.came_up()

    assert new.go_back("I liked the old one.") == "1.0.0"
    assert new.current == "1.0.0"
    assert new.before is None
    assert new.go_back("Again.") is None


def test_after_one_was_left_the_one_before_the_current_one_can_be_gone_back_to(root: Path) -> None:
    make_tree(root / "versions" / "0.9.0", "0.9.0")
    make_tree(root / "versions" / "0.10.0", "0.10.0")
    with_new(root).go_back("It ended at once.")
    old = versions(root)

    assert (old.current, old.before) == ("1.0.0", "0.10.0")
    assert old.go_back("It is no better.", by_owner=True) == "0.10.0"
    assert versions(root, "0.10.0").before == "0.9.0"


def test_what_is_no_whole_version_is_not_gone_back_to(root: Path) -> None:
    old = versions(root)
    make_tree(old.new("0.9.0"), "0.9.0")
    (root / "versions" / "notes").mkdir()
    (root / "versions" / "0.8.0").touch()

    assert old.before is None


def test_a_damaged_state_counts_as_none(root: Path) -> None:
    old = with_new(root)
    (root / "versions" / "state.json").write_text("{")

    assert not old.is_on_trial
    assert started(lambda: "up", old, StartError) == "up"


def test_the_version_in_use_is_not_replaced_by_itself(root: Path) -> None:
    old = versions(root)
    make_tree(old.new("1.0.0"), "1.0.0")

    with pytest.raises(StoreError, match="in use already"):
        old.add("1.0.0")
    assert (root / "tree" / "potluck.json").exists()


def test_an_archive_is_unpacked_without_what_lies_beside_its_tree(
    root: Path, tmp_path: Path
) -> None:
    new = versions(root).new("2.0.0")

    archive.unpack(make_archive(tmp_path / "made", "2.0.0"), new, threading.Event())

    assert sorted(path.name for path in new.iterdir()) == ["potluck.json", "python", "site"]
    assert (new / "python" / "bin" / "python3").stat().st_mode & 0o100


@pytest.mark.parametrize("name", ["x/tree/../../../out", "/x/tree/out", "x/tree/link"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    made = tmp_path / "made.tar.xz"
    with tarfile.open(made, "w:xz") as tar:
        member = tarfile.TarInfo(name)
        if name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "../../../out"
        tar.addfile(member)
    (tmp_path / "in").mkdir()

    with pytest.raises(IntegrityError, match="damaged"):
        archive.unpack(made, tmp_path / "in" / "new", threading.Event())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("data", [b"", b"no archive", b"\xfd7zXZ\x00\x00\x04"])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    made = tmp_path / "made.tar.xz"
    made.write_bytes(data)

    with pytest.raises(IntegrityError, match="damaged"):
        archive.unpack(made, tmp_path / "new", threading.Event())


def test_a_version_is_tried_as_a_process(tmp_path: Path) -> None:
    try_version(make_tree(tmp_path / "new", "2.0.0"), "2.0.0", threading.Event())


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("2.0.1", ""),
        ("2.0.0", "raise SystemExit(3)"),
        ("2.0.0", "import sys; sys.modules['potluck.cli'] = None"),
    ],
    ids=["another", "ends", "lacks"],
)
def test_one_that_does_not_start_is_refused(tmp_path: Path, version: str, code: str) -> None:
    tree = make_tree(tmp_path / "new", version, code=code)

    with pytest.raises(TrialError, match="used on"):
        try_version(tree, "2.0.0", threading.Event())


def test_one_without_a_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrialError):
        try_version(tmp_path, "2.0.0", threading.Event())


def test_a_trial_can_be_stopped(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "new", "2.0.0", code="import time; time.sleep(60)")
    stopped = threading.Event()
    stopped.set()

    with pytest.raises(StoppedError):
        try_version(tree, "2.0.0", stopped)


def test_a_package_of_a_user_replaces_itself_and_others_do_not(root: Path, tmp_path: Path) -> None:
    mine = installed(root, "1.0.0")
    tar, keys = mine.tree, mine.updates

    assert way(mine) == ("itself", "")
    assert way(None) == ("manual", CHECKOUT)
    assert way(Package(tar, "tar", "1.0.0")) == ("manual", NO_RELEASES)
    assert way(Package(tmp_path / "tree", "tar", "1.0.0", keys)) == ("manual", OLD_FOLDER)
    assert way(Package(tmp_path, "deb", "1.0.0", keys)) == ("package", "")
    assert "sudo apt install /x.deb" in how_to_install("deb", Path("/x.deb"))


def test_programs_of_a_package_are_started_by_the_link_that_updates_move(root: Path) -> None:
    launcher = installed(root, "1.0.0").launcher("window")

    assert launcher == [str(root / "tree/bin/potluck-window"), "--hidden"]
