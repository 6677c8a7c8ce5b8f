"""Files that are whole or not there."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from potluck.files import (
    make_folder,
    open_to_read,
    read_places,
    recall,
    remove,
    replace,
    sync_folder,
    try_lock,
    write_atomically,
)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"the old one, which was longer")

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "folder" / "file", b"first")

    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"first"


def test_what_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "content").write_bytes(b"")  # a folder that is not empty cannot be replaced

    with pytest.raises(OSError, match="folder"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


class Held:
    """A file that another program holds for the first moves."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.waited_s = 0.0

    def move(self, source: Path, target: Path) -> None:
        self._refuse(target)
        source.replace(target)

    def unlink(self, path: Path) -> None:
        self._refuse(path)
        path.unlink()

    def _refuse(self, path: Path) -> None:
        if self.left:
            self.left -= 1
            raise PermissionError(13, "The process cannot access the file", str(path))

    def pause(self, seconds: float) -> None:
        self.waited_s += seconds


def test_on_windows_a_held_file_is_replaced_as_soon_as_it_is_let_go(tmp_path: Path) -> None:
    new, old, held = tmp_path / "new", tmp_path / "old", Held(3)
    new.write_bytes(b"new")
    old.write_bytes(b"old")

    replace(new, old, system="win32", move=held.move, pause=held.pause)

    assert old.read_bytes() == b"new"
    assert not new.exists()


def test_on_windows_a_held_file_is_removed_as_soon_as_it_is_let_go(tmp_path: Path) -> None:
    old, held = tmp_path / "old", Held(3)
    old.write_bytes(b"old")

    remove(old, system="win32", unlink=held.unlink, pause=held.pause)

    assert not old.exists()
    assert held.waited_s > 0
    remove(old)  # it is gone already


def test_a_file_that_stays_held_is_an_error_within_a_second(tmp_path: Path) -> None:
    held = Held(1000)

    with pytest.raises(PermissionError):
        replace(
            tmp_path / "new", tmp_path / "old", system="win32", move=held.move, pause=held.pause
        )
    assert 0.5 < held.waited_s < 1.0


def test_elsewhere_nobody_can_hold_a_file_and_an_error_is_final(tmp_path: Path) -> None:
    held = Held(1)

    with pytest.raises(PermissionError):
        replace(
            tmp_path / "new", tmp_path / "old", system="linux", move=held.move, pause=held.pause
        )
    assert held.waited_s == 0.0


class WindowsLocks:
    """The module `msvcrt`, as far as a lock needs it."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: set[int] = set()

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        if mode != self.LK_NBLCK or count != 1 or descriptor in self.held:
            raise PermissionError(13, "Permission denied")
        self.held.add(descriptor)


def test_on_windows_a_lock_is_on_the_first_byte_and_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "msvcrt", WindowsLocks())
    monkeypatch.setattr(sys, "platform", "win32")

    assert try_lock(5)
    assert not try_lock(5)


def test_windows_is_not_asked_to_flush_a_folder(tmp_path: Path) -> None:
    sync_folder(tmp_path / "missing", system="win32")

    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing", system="linux")


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of this kind are POSIX's")
def test_a_file_is_its_owners_alone_also_in_place_of_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"")
    path.chmod(0o666)

    write_atomically(path, b"secret")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of this kind are POSIX's")
def test_a_folder_that_is_made_for_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Such as that of the conversations, which the window makes."""
    write_atomically(tmp_path / "conversations" / "file", b"secret")

    assert stat.S_IMODE((tmp_path / "conversations").stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="links need a permission there")
def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "file").symlink_to(tmp_path / "victim")

    write_atomically(tmp_path / "file", b"new")

    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"", b"{", b"5"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)

    assert recall(tmp_path / "file", list[object]) is None


def test_folder_that_somebody_deletes_at_this_moment_is_made(tmp_path, monkeypatch):
    folder = tmp_path / "weights" / "2a"
    folder.mkdir(parents=True)
    mkdir = os.mkdir

    def deleted_after_it_was_found(path: Path, mode: int) -> None:
        monkeypatch.setattr(os, "mkdir", mkdir)
        shutil.rmtree(tmp_path / "weights")
        raise FileExistsError(path)

    monkeypatch.setattr(os, "mkdir", deleted_after_it_was_found)

    make_folder(folder)

    assert folder.is_dir()


def test_folder_is_not_made_in_place_of_a_file(tmp_path):
    file = tmp_path / "weights"
    file.write_text("not a folder")

    with pytest.raises(FileExistsError):
        make_folder(file)


@pytest.mark.parametrize("in_pieces", [True, False])
def test_pieces_of_a_file_are_read_into_one_view(tmp_path: Path, in_pieces: bool) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    view = memoryview(bytearray(6))

    with open_to_read(tmp_path / "file", in_pieces=in_pieces) as file:
        assert read_places(file, [(7, 2), (0, 3), (5, 1)], view) == 6
        assert bytes(view) == b"780125"
        assert read_places(file, [(1, 2), (8, 4)], view) == 4  # the file ends before
        assert bytes(view[:4]) == b"1289"
