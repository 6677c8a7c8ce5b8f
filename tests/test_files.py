"""Files that are whole or not there."""

import stat
import sys
from pathlib import Path

import pytest

from potluck.files import write_atomically


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
