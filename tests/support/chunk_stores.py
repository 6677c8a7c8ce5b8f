"""Stores on a disk that never fills up, and contents for them."""

import hashlib
from pathlib import Path

from potluck.ids import Digest
from potluck.store.chunks import ChunkStore

DATA = bytes(range(256)) * 40
SIZE = len(DATA)
PLENTY = 1 << 50


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


DIGEST = digest_of(DATA)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def make_store(root: Path, **options) -> ChunkStore:
    options = {"disk_free": lambda _: PLENTY, "clock": Clock(), "reserve": 0} | options
    return ChunkStore(root, **options)


def is_intact(store: ChunkStore, digest: Digest) -> bool:
    """Whether the tensor is here with the bytes of its digest."""
    return digest_of(store.path(digest).read_bytes()) == digest


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def fill(store: ChunkStore, *contents: bytes) -> list[Digest]:
    digests = [digest_of(data) for data in contents]
    for digest, data in zip(digests, contents, strict=True):
        assert store.write(digest, 0, len(data), data)
    return digests


def made(store: ChunkStore, data: bytes) -> Path:
    """Return a file that another process has made for the store."""
    store.workshop.mkdir(exist_ok=True)
    path = store.workshop / "made"
    path.write_bytes(data)
    return path
