"""Files that are whole or not there."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from potluck.files import make_folder, recall, write_atomically


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
