"""Memory that processes of one user on one computer share, of which nothing is left when they have ended.

On Linux it has no name at all: another process opens it as a file of the one that made it (`/proc/PID/fd`). On Windows
its name ends with the last process that has it. Elsewhere it is a file that only its user can open; its name is taken
away as soon as all have opened it, and what was left by one that was killed before that, by the next one. (Python's
`multiprocessing.shared_memory` has names on all of them, and a process beside each that removes them.)

What the memory begins with says that it is the one that was meant.
"""

import ctypes
import mmap
import os
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from potluck.errors import EngineError
from potluck.wire.rank_messages import MemoryPlace

_HEAD_BYTES = 4096  # a page, of which the token is the first bytes
_FIRST = "potluck-sums-"  # of the name of a file
_STALE_S = 600.0  # a file is opened by all a minute after it was made, or never


class SharedMemory:
    """Memory of a fixed size, at `address`. It is given back when nothing refers to this any more."""

    def __init__(self, mapped: mmap.mmap, place: MemoryPlace, kept: int | None = None) -> None:
        """Use `create` or `open`; `kept` is the descriptor by which others open it."""
        self.place = place
        self._kept = kept
        self._mapped = (ctypes.c_char * len(mapped)).from_buffer(mapped)  # which it keeps
        self.address: int = ctypes.addressof(self._mapped) + _HEAD_BYTES
        self.nbytes: int = len(mapped) - _HEAD_BYTES

    @classmethod
    def create(cls, nbytes: int) -> "SharedMemory":
        """Make memory of zeros. `hide` it as soon as the others have opened it.

        Raises:
            OSError: the system refuses it.
        """
        size, token = _HEAD_BYTES + nbytes, token_hex(16)
        if sys.platform == "win32":
            made = cls(_windows_memory(token, size), MemoryPlace(token=token))
        elif hasattr(os, "memfd_create"):
            descriptor = os.memfd_create(_FIRST + token)
            place = MemoryPlace(token=token, process=os.getpid(), descriptor=descriptor)
            made = cls(_mapped(descriptor, size, is_new=True), place, descriptor)
        else:
            _remove_stale()
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(_file(token), flags, 0o600)
            made = cls(_mapped(descriptor, size, is_new=True), MemoryPlace(token=token), descriptor)
        ctypes.memmove(ctypes.addressof(made._mapped), bytes.fromhex(token), 16)
        return made

    @classmethod
    def open(cls, place: MemoryPlace, nbytes: int) -> "SharedMemory":
        """Open what another process has made.

        Raises:
            OSError, EngineError: it is not there, or not what was meant.
        """
        size = _HEAD_BYTES + nbytes
        if sys.platform == "win32":
            opened = cls(_windows_memory(place.token, size), place)
        else:
            path = _file(place.token)
            flags = os.O_RDWR | os.O_NONBLOCK  # whatever it is, opening it takes no time
            if place.process:
                path = Path(f"/proc/{place.process}/fd/{place.descriptor}")
            else:
                flags |= os.O_NOFOLLOW
            descriptor = os.open(path, flags)
            try:
                _check(descriptor, size)
                opened = cls(_mapped(descriptor, size), place)
            finally:
                os.close(descriptor)
        if bytes(opened._mapped[:16]) != bytes.fromhex(place.token):
            raise EngineError(
                "The memory that another process shares is not the one that it means."
            )
        return opened

    def hide(self) -> None:
        """Let nobody open it any more. Who has it goes on."""
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)
            if not self.place.process:
                _file(self.place.token).unlink(missing_ok=True)

    def __del__(self) -> None:
        """Hide what was never hidden."""
        self.hide()


def _mapped(descriptor: int, size: int, *, is_new: bool = False) -> mmap.mmap:
    """Map a file; a new one gets its size, and is closed if that fails."""
    try:
        if is_new:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    except BaseException:
        if is_new:
            os.close(descriptor)
        raise


def _check(descriptor: int, size: int) -> None:
    """Refuse what is no memory of this user and size."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != size:
        raise EngineError("What another process names is no memory that it shares.")


def _remove_stale() -> None:
    """Remove files of processes that were killed before they could."""
    for file in Path(tempfile.gettempdir()).glob(f"{_FIRST}*"):
        with suppress(OSError):
            found = file.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _STALE_S:
                file.unlink()


def _file(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{_FIRST}{token}"


def _windows_memory(token: str, size: int) -> mmap.mmap:
    """Make the memory of this name, or open it if it is there."""
    name = f"Local\\{_FIRST}{token}"
    return mmap.mmap(-1, size, tagname=name)  # pyright: ignore[reportCallIssue] - Windows alone has names
