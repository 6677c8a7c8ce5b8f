"""A tensor while it arrives: a file that grows, and the hash of its content.

The hash is updated with each write. It is computed again from the file if the two differ: after a
restart, or after a write that failed half-way.
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from potluck.errors import DiskFullError, IntegrityError, StoreError, format_bytes
from potluck.files import flush_data, replace
from potluck.ids import Digest, short
from potluck.reasons import reason

PART = ".part"
BUFFER_SIZE = 1 << 20  # fits a core's L2 cache, so that the copy is cheap next to SHA-256


class Part:
    """One tensor's part. The owner must hold `lock` when it calls a method."""

    def __init__(self, path: Path, digest: Digest) -> None:
        self.path, self.digest = path, digest
        self.lock = Lock()
        self.size = 0
        self.is_whole = False  # whole and intact, but not renamed yet
        self._sha = hashlib.sha256()

    def append(self, offset: int, total: int, data: memoryview | bytes) -> bool:
        """Append bytes that are not here yet. Returns whether the tensor is whole and intact.

        Raises:
            IntegrityError: the bytes have another digest, or the bytes before these are gone.
        """
        with disk_errors(self.digest), open_to_append(self.path) as file:
            if file.tell() != self.size:
                self._rehash()
            if offset > self.size or self.size > total:
                raise IntegrityError(
                    f"A chunk of tensor {short(self.digest)} begins at byte {offset};"
                    f" {self.size} of {total} are here. Its file was deleted or altered.",
                    digest=self.digest,
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

    def finish(self, path: Path, *, move: Callable[[Path, Path], None] = os.replace) -> None:
        """Flush a whole part and rename it to its digest with `move`. The caller must sync the folder.

        Raises:
            IntegrityError: the file was deleted.
        """
        with disk_errors(self.digest):
            _flush(self.path)
            replace(self.path, path, move=move)
        self.is_whole = False

    def _rehash(self) -> None:
        self._sha, self.size = hashlib.sha256(), 0
        for piece in pieces(self.path, 0, self.path.stat().st_size):
            self._sha.update(piece)
            self.size += len(piece)


@contextmanager
def disk_errors(digest: Digest | None = None) -> Generator[None]:
    """Turn the disk's errors into errors that a person understands.

    A file of the tensor `digest` that is gone is an IntegrityError: it has to be fetched again.
    """
    try:
        yield
    except OSError as error:
        if digest is not None and isinstance(error, FileNotFoundError):
            raise IntegrityError(
                f"The file of tensor {short(digest)} was deleted while it arrived.", digest=digest
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                "The disk became full while weights arrived. Free some space and try again; what"
                " is here is kept."
            ) from error
        raise StoreError(f"Weights cannot be written: {reason(error)}.") from error


def flush(path: Path) -> None:
    """Flush a file's bytes to the disk, before a rename declares them whole."""
    with disk_errors():
        _flush(path)


def _flush(path: Path) -> None:
    with path.open("r+b") as file:
        flush_data(file.fileno())


def digest_of(path: Path, offset: int, nbytes: int) -> Digest:
    """The SHA-256 of so many bytes of a file; of fewer if the file ends before.

    Raises:
        OSError: the file cannot be read.
    """
    sha = hashlib.sha256()
    for piece in pieces(path, offset, nbytes):
        sha.update(piece)
    return Digest(sha.hexdigest())


def open_to_append(path: Path) -> io.FileIO:
    """Open unbuffered: a chunk is one write. Parts do not keep files open while they are idle."""
    return io.FileIO(path, "ab")


def pieces(path: Path, offset: int, nbytes: int) -> Iterator[memoryview]:
    """So many bytes of a file, piece by piece in one buffer; fewer if the file ends before.

    The file is read, not mapped: if another program truncates a mapped file, our process dies.
    """
    buffer = memoryview(bytearray(min(BUFFER_SIZE, nbytes)))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while nbytes and (count := file.readinto(buffer[:nbytes])):
            yield buffer[:count]
            nbytes -= count
