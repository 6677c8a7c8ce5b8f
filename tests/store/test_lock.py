import os
import subprocess
import sys

import pytest

from potluck.errors import StoreError
from potluck.store.lock import NAME, FolderLock


def test_second_lock_is_refused_until_the_first_is_released(tmp_path):
    lock = FolderLock(tmp_path / "folder")

    with pytest.raises(StoreError, match=r"Another Potluck uses.*--home"):
        FolderLock(tmp_path / "folder")
    lock.release()
    lock.release()

    FolderLock(tmp_path / "folder").release()


def test_folder_of_a_killed_process_is_free_again(tmp_path):
    script = (
        "import sys; from pathlib import Path; from potluck.store.lock import FolderLock;"
        "lock = FolderLock(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        with pytest.raises(StoreError, match="Another Potluck"):
            FolderLock(tmp_path)
        process.kill()

    FolderLock(tmp_path).release()


def test_folder_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot be used"):
        FolderLock(tmp_path / "file" / "weights")


def test_lock_whose_file_was_deleted_or_replaced_is_not_in_place(tmp_path):
    lock = FolderLock(tmp_path)
    assert lock.is_in_place

    (tmp_path / NAME).unlink()
    assert not lock.is_in_place

    (tmp_path / NAME).touch()
    assert not lock.is_in_place
    lock.release()
