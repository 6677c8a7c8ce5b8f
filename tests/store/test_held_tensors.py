"""Tensors whose files the system keeps for a while, as Windows does."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chunk_stores import DATA, SIZE, digest_of, fill

from potluck.files import remove
from potluck.store import chunks

# --- writing


class Held:
    """Windows keeps a file that somebody reads: what stands for `remove` while some are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None
        self._unlink = Path.unlink
        monkeypatch.setattr(Path, "unlink", lambda path, **how: self._removed(path, **how))
        monkeypatch.setattr(chunks, "remove", self._remove)

    def _removed(self, path: Path, *, missing_ok: bool = False) -> None:
        if path.name in self.names:
            raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))
        self._unlink(path, missing_ok=missing_ok)

    def _remove(self, path: Path, **options: Any) -> None:
        remove(path, system="win32", pause=lambda _: self.meanwhile(), **options)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def test_a_tensor_whose_file_the_system_keeps_is_not_here_and_goes_later(store, held):
    kept, other = fill(store, DATA, b"other")
    held.names = {kept}
    store.set_aside([kept])  # it would go first

    assert not store.discard(kept)
    store.free_for(store.room() + 1)  # another one makes room

    assert [store.has(digest) for digest in (kept, other)] == [False, False]
    assert [one.digest for one in store.missing([(kept, SIZE)])] == [kept]
    assert store.inventory.nbytes == SIZE  # that the disk has not got back

    held.names = set()
    store.missing([])
    assert not store.path(kept).exists()
    assert store.inventory.nbytes == 0


def test_a_damaged_tensor_whose_file_the_system_keeps_is_not_here_and_comes_again(store, held):
    (kept,) = fill(store, DATA)
    store.path(kept).write_bytes(bytes(SIZE))
    held.names = {kept}

    assert store.verify([kept]) == [kept]
    assert not store.has(kept)
    assert store.verify([kept]) == []

    assert store.write(kept, 0, SIZE, DATA)  # or another computer sends it
    held.names = set()
    store.missing([])
    assert store.path(kept).read_bytes() == DATA
    assert store.has(kept)
    assert store.inventory.nbytes == SIZE


def test_other_tensors_come_and_go_while_one_is_waited_for(store, held):
    kept, other = fill(store, DATA, b"other")
    held.names = {kept}
    went: list[bool] = []
    with ThreadPoolExecutor() as pool:

        def go_on() -> None:
            went.append(pool.submit(store.discard, other).result(timeout=30))
            went.append(
                pool.submit(store.write, digest_of(b"new"), 0, 3, b"new").result(timeout=30)
            )

        held.meanwhile = go_on
        store.free_for(store.room() + 1)

    assert went
    assert all(went)
