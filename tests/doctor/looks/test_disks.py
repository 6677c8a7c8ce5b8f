"""Folders that can be written or not, and keys that others can read or not."""

import os
from pathlib import Path

import pytest

from potluck.doctor.looks import disks
from potluck.doctor.looks.disks import look_at_disks, look_at_secrets

posix = pytest.mark.skipif(os.name != "posix", reason="the rights of POSIX")


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above_it(tmp_path: Path) -> None:
    (disk,) = look_at_disks({"weights": tmp_path / "not" / "yet"})

    assert disk.free > 0
    assert disk.error == ""
    assert list(tmp_path.iterdir()) == []  # nothing was made, and the trial is gone


def test_a_full_disk_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disks.tempfile, "TemporaryFile", full)

    (disk,) = look_at_disks({"logs": tmp_path})

    assert disk.error == "the disk is full"


@posix
@pytest.mark.parametrize(
    ("folder_mode", "key_mode", "is_private"),
    [(0o700, 0o600, True), (0o755, 0o600, True), (0o700, 0o644, True), (0o755, 0o640, False)],
)
def test_keys_are_private_if_nobody_else_reaches_or_reads_them(
    folder_mode: int, key_mode: int, is_private: bool, tmp_path: Path
) -> None:
    key = tmp_path / "node.key.pem"
    key.write_text("secret")
    key.chmod(key_mode)
    tmp_path.chmod(folder_mode)

    seen = look_at_secrets(tmp_path)

    assert seen is not None
    assert seen.is_private is is_private


def test_without_keys_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert look_at_secrets(tmp_path / "none") is None
