"""A tensor while it arrives: a file that grows, and the hash of its content.

The hash is updated with each write. It is computed again from the file if the two differ: after a
restart, or after a write that failed half-way.
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from potluck.errors import DiskFullError, IntegrityError, StoreError, format_bytes
from potluck.ids import Digest, short

PART = ".part"
BUFFER_SIZE = 1 << 20  # fits a core's L2 cache, as for model files

# fdatasync does not flush the times; macOS and Windows have only fsync.
flush_data = getattr(os, "fdatasync", os.fsync)


class Part:
    """One tensor's part. The owner must hold `lock` when it calls a method."""

    def __init__(self, path: Path, digest: Digest) -> None:
        self.path, self.digest = path, digest
        self.lock = Lock()
        self.size = 0
        self.is_whole = False  # whole and intact, but not renamed yet
        self._sha = hashlib.sha256()

    def append(self, offset: int, total: int, data: memoryview | bytes) -> bool:
        """Append bytes that are not here yet. Returns whether the tensor is whole and intact."""
        with _disk_errors(), open_to_append(self.path) as file:
            if file.tell() != self.size:
                self._rehash()
            if offset > self.size or self.size > total:
                raise StoreError(
                    f"A chunk of tensor {short(self.digest)} begins at byte {offset};"
                    f" {self.size} of {total} are here.",
                    offset=offset,
                    size=self.size,
                )
            fresh = memoryview(data)[self.size - offset :]
            while fresh:
                count = file.write(fresh)
                self._sha.update(fresh[:count])
                self.size += count
                fresh = fresh[count:]
        if self.size < total:
            return False
        if self._sha.hexdigest() != self.digest:
            raise IntegrityError(
                f"Tensor {short(self.digest)} arrived altered ({format_bytes(total)}) and was not"
                " kept.",
                digest=self.digest,
            )
        self.is_whole = True
        return True

    def finish(self, path: Path) -> None:
        """Flush a whole part and rename it to its digest. The caller must sync the folder."""
        flush(self.path)
        with _disk_errors():
            self.path.replace(path)
        self.is_whole = False

    def _rehash(self) -> None:
        self._sha = hashlib.sha256()
        self.size = _feed(self._sha.update, self.path)


class _disk_errors:  # noqa: N801 - used like a statement
    """Turn the disk's errors into errors that a person understands."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                "The disk became full while weights arrived. Free some space and try again; what"
                " is here is kept."
            ) from error
        raise StoreError(f"Weights cannot be written: {error}.") from error


def flush(path: Path) -> None:
    """Flush a file's bytes to the disk, before a rename declares them whole."""
    with _disk_errors(), path.open("r+b") as file:
        flush_data(file.fileno())


def open_to_append(path: Path) -> io.FileIO:
    """Open unbuffered: a chunk is one write. Parts do not keep files open while they are idle."""
    return io.FileIO(path, "ab")


def digest_file(path: Path) -> Digest:
    """Compute the digest of a whole file."""
    sha = hashlib.sha256()
    _feed(sha.update, path)
    return Digest(sha.hexdigest())


def _feed(update: Callable[[memoryview], None], path: Path) -> int:
    size = 0
    buffer = memoryview(bytearray(BUFFER_SIZE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            update(buffer[:count])
            size += count
    return size
