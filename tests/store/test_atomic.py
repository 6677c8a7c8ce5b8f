from pathlib import Path

import pytest

from potluck.store.atomic import write_file


def test_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "new" / "folder" / "file.json"

    write_file(path, b"first, which is longer")
    write_file(path, b"second")

    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_file(path, b"old")

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="No space left"):
            write_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
