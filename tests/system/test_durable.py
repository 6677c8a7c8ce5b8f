"""Files outlive a power cut on each system: one by one, or all at once."""

import io
from pathlib import Path

import pytest

from potluck.system.durable import keep_all, keep_file


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        ("linux", ["all"]),
        ("darwin", ["one", "one"]),  # `sync` does not wait there
        ("win32", ["one", "one"]),  # and is none there
    ],
)
def test_files_are_kept_all_at_once_or_one_by_one(
    tmp_path: Path, system: str, kept: list[str]
) -> None:
    told: list[str] = []
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as file:
            file.write(name.encode())
            keep_file(file, system=system, flush=lambda _: told.append("one"))
    keep_all(system=system, sync=lambda: told.append("all"))

    assert told == kept


def test_what_python_holds_is_the_systems_before_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    seen: list[bytes] = []

    with path.open("wb", buffering=io.DEFAULT_BUFFER_SIZE) as file:
        file.write(b"all of it")
        keep_file(file, system="darwin", flush=lambda _: seen.append(path.read_bytes()))

    assert seen == [b"all of it"]


def test_the_system_takes_both(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"kept")
        keep_file(file, system="darwin")
    keep_all()

    assert (tmp_path / "file").read_bytes() == b"kept"
