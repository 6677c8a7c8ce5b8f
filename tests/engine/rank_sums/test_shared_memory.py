"""Memory that processes share: who can open it, and what is left of it."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from potluck.engine.rank_sums import shared_memory
from potluck.engine.rank_sums.shared_memory import SharedMemory
from potluck.errors import EngineError
from potluck.wire.rank_messages import MemoryPlace

NBYTES = 8192


@pytest.fixture(params=["nameless", "file"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a POSIX system shares memory, as far as this one has them."""
    if sys.platform == "win32":
        pytest.skip("Windows has a way of its own")
    if request.param == "nameless" and not hasattr(os, "memfd_create"):
        pytest.skip("all memory has a name here")
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(shared_memory.tempfile, "gettempdir", lambda: str(tmp_path))
    return request.param


def number(memory: SharedMemory) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(memory.address)


def test_on_windows_memory_is_found_by_its_name_and_by_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, mmap.mmap] = {}

    def memory(token: str, size: int) -> mmap.mmap:
        return named.setdefault(token, mmap.mmap(-1, size))

    monkeypatch.setattr(shared_memory, "_windows_memory", memory)
    monkeypatch.setattr(shared_memory.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "platform", "win32")

    made = SharedMemory.create(NBYTES)
    opened = SharedMemory.open(made.place, NBYTES)
    number(made).value = 7

    assert number(opened).value == 7
    assert list(named) == [made.place.token]
    assert (made.place.process, list(tmp_path.iterdir())) == (0, [])


def test_what_one_writes_the_other_reads() -> None:
    made = SharedMemory.create(NBYTES)
    opened = SharedMemory.open(made.place, NBYTES)

    number(made).value = 7
    made.hide()
    made.hide()

    assert number(opened).value == 7
    number(opened).value = 8
    assert number(made).value == 8
    assert made.address % 128 == opened.address % 128 == 0


@pytest.mark.usefixtures("kind")
def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    made = SharedMemory.create(NBYTES)
    opened = SharedMemory.open(made.place, NBYTES)
    made.hide()

    assert list(tmp_path.iterdir()) == []
    number(opened).value = 7
    assert number(made).value == 7


def test_another_process_opens_it_while_it_is_not_hidden(kind: str, tmp_path: Path) -> None:
    made = SharedMemory.create(NBYTES)
    number(made).value = 7
    program = (
        "import ctypes, os, sys, tempfile, msgspec\n"
        "from potluck.engine.rank_sums.shared_memory import SharedMemory\n"
        "from potluck.wire.rank_messages import MemoryPlace\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"memory = SharedMemory.open(msgspec.json.decode(sys.argv[1], type=MemoryPlace), {NBYTES})\n"
        "number = ctypes.c_int64.from_address(memory.address)\n"
        "number.value += 1\n"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(made.place).decode()]

    subprocess.run(command, check=True)

    assert number(made).value == 8
    made.hide()
    if kind == "file":
        assert subprocess.run(command, check=False, capture_output=True).returncode


@pytest.mark.usefixtures("kind")
def test_what_is_not_the_memory_that_was_meant_is_refused(tmp_path: Path) -> None:
    made = SharedMemory.create(NBYTES)
    place = made.place

    with pytest.raises(EngineError):
        SharedMemory.open(place, 2 * NBYTES)
    with pytest.raises((EngineError, OSError)):
        SharedMemory.open(msgspec.structs.replace(place, token="0" * 32), NBYTES)
    with pytest.raises((EngineError, OSError)):
        SharedMemory.open(MemoryPlace(token="0" * 32, process=os.getpid(), descriptor=0), NBYTES)
    (tmp_path / f"potluck-sums-{'1' * 32}").symlink_to("/etc/hostname")
    with pytest.raises((EngineError, OSError)):
        SharedMemory.open(MemoryPlace(token="1" * 32), NBYTES)
    made.hide()


def test_what_a_process_that_was_killed_has_left_is_removed_by_the_next_one(
    kind: str, tmp_path: Path
) -> None:
    if kind != "file":
        pytest.skip("nothing can be left")
    old, new = (tmp_path / f"potluck-sums-{name}" for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"")
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))

    made = SharedMemory.create(NBYTES)

    assert not old.exists()
    assert new.exists()  # another group may be opening it now
    made.hide()


def test_a_token_is_no_path() -> None:
    for token in ("../x", "0" * 31, "G" * 32, "0" * 32 + "\n"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({"token": token}), type=MemoryPlace)
