"""A version that its owner brought as a file: newer ones are put beside the one in use, what was left is not taken again."""

import sys
from pathlib import Path

import pytest
from releases import make_root, make_tree

from potluck.update import carried
from potluck.update.carried import is_wanted, main
from potluck.update.versions import Versions
from potluck.update.ways import NOT_YOURS, OLD_FOLDER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the AppImage is for Linux")


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(make_root(tmp_path / "potluck", "1.0.0"), "1.0.0")


def names(versions: Versions) -> list[str]:
    return sorted(path.name for path in versions.folder.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("version", "is_so"), [("1.0.1", True), ("1.0.0", False), ("0.9.0", False), ("1.0.0rc1", False)]
)
def test_only_a_newer_version_is_wanted(versions: Versions, version: str, is_so: bool) -> None:
    assert is_wanted(versions, version) is is_so
    assert main(["wants", version], versions) == (0 if is_so else 1)


def test_it_is_used_from_the_next_start_on_and_can_be_left_again(
    versions: Versions, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "carried", "2.0.0")

    assert main(["take", str(tree), "2.0.0"], versions) == 0

    assert versions.current == "2.0.0"
    assert versions.is_on_trial
    assert versions.before == "1.0.0"
    assert not tree.exists()
    assert versions.go_back("Its owner went back.", by_owner=True) == "1.0.0"
    # Who opens the same file again has not changed his mind.
    assert not is_wanted(versions, "2.0.0")
    assert is_wanted(versions, "2.0.1")


def test_one_that_does_not_start_is_not_used(versions: Versions, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "carried", "2.0.0", code="raise SystemExit(1)")

    assert "does not start on this computer" in str(main(["take", str(tree), "2.0.0"], versions))

    assert versions.current == "1.0.0"
    assert names(versions) == ["1.0.0"]  # nor is it left there under another name


def test_what_another_start_has_taken_meanwhile_stays(versions: Versions, tmp_path: Path) -> None:
    assert main(["take", str(make_tree(tmp_path / "first", "2.0.0")), "2.0.0"], versions) == 0
    second = make_tree(tmp_path / "second", "2.0.0")

    assert main(["take", str(second), "2.0.0"], versions) == 0

    assert second.exists()
    assert names(versions) == ["1.0.0", "2.0.0"]


def test_an_older_one_that_waited_does_not_take_the_place_of_a_newer_one(
    versions: Versions, tmp_path: Path
) -> None:
    assert is_wanted(versions, "1.5.0")  # as it began
    assert main(["take", str(make_tree(tmp_path / "first", "2.0.0")), "2.0.0"], versions) == 0

    assert main(["take", str(make_tree(tmp_path / "second", "1.5.0")), "1.5.0"], versions) == 0

    assert versions.current == "2.0.0"


def test_the_program_of_somebody_else_is_not_changed(
    versions: Versions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Versions, "is_writable", lambda _: False)
    tree = make_tree(tmp_path / "carried", "2.0.0")

    assert main(["take", str(tree), "2.0.0"], versions) == NOT_YOURS

    assert tree.exists()


def test_a_checkout_takes_nothing(tmp_path: Path) -> None:
    assert main(["wants", "99.0.0"]) == 1
    assert main(["take", str(tmp_path), "99.0.0"]) == OLD_FOLDER
    assert main([]) == carried.__doc__
