"""Writes files that survive a crash, reads pieces of them, and locks files for one process at a time."""

import codecs
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_TRIES = 8  # to make a folder that somebody deletes at the same time
_PRIVATE_FOLDER = 0o700
_PRIVATE = 0o600  # only the owner may read it, from the first byte on
_LOCK_POLL_S = 0.05
_PIECES = 1 << 16  # bytes read at once where pieces of a file are read
_HELD_WAITS_S = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.4,
)  # between tries, while another program holds a file

O_BINARY: int = getattr(os, "O_BINARY", 0)
"""For `os.open`: Windows would else change the ends of lines."""

# fdatasync does not flush the times; macOS and Windows have only fsync.
flush_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def without_mark(data: bytes) -> bytes:
    """A text file's bytes without the byte-order mark that some editors begin it with."""
    return data.removeprefix(codecs.BOM_UTF8)


def write_atomically(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Replace the file's whole content at once, so that it survives a power cut if it is durable.

    The folder is made if it is missing. Only the owner may read the file, from its first byte on,
    and a folder that was made. Windows has no such modes: there the user's own folder protects both.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_FOLDER)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY
    descriptor = os.open(temporary, flags, _PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def replace(
    source: Path,
    target: Path,
    *,
    system: str = sys.platform,
    move: Callable[[Path, Path], None] = os.replace,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Move a file to this name at once, in place of the file that has it.

    On Windows neither may be open elsewhere. A reader of ours or a virus scanner holds a file for a moment,
    so it is tried again for up to a second.

    Args:
        source: the file.
        target: its new path, on the same disk.
        system: as in `sys.platform`.
        move: does it.
        pause: sleeps so many seconds.

    Raises:
        OSError: it cannot be moved, or another program holds one of the files for longer.
    """
    _while_held(lambda: move(source, target), system, pause)


def remove(
    path: Path,
    *,
    system: str = sys.platform,
    unlink: Callable[[Path], None] = lambda path: path.unlink(missing_ok=True),
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Remove a file that may be gone already. On Windows it may not be open elsewhere: it is tried again as for `replace`.

    Args:
        path: of the file.
        system: as in `sys.platform`.
        unlink: does it.
        pause: sleeps so many seconds.

    Raises:
        OSError: it cannot be removed, or another program holds it for longer.
    """
    _while_held(lambda: unlink(path), system, pause)


def _while_held(do: Callable[[], None], system: str, pause: Callable[[float], None]) -> None:
    for wait_s in _HELD_WAITS_S if system == "win32" else ():
        try:
            return do()
        except PermissionError:
            pause(wait_s)
    return do()


def make_folder(path: Path) -> None:
    """Make a folder and those above it if they are missing, also while somebody deletes them.

    `Path.mkdir` takes a folder that was deleted after it was found for a file with its name.

    Raises:
        OSError: a file has its name, or it cannot be made.
    """
    for _ in range(_TRIES):
        with suppress(FileExistsError, FileNotFoundError):
            return path.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            break
    return path.mkdir(parents=True, exist_ok=True)


def recall(path: Path, kind: type[_T]) -> _T | None:
    """What a small JSON file holds that a program can do without.

    Returns:
        None if the file is missing, damaged or of another form.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:  # bad JSON and UTF-8 are ValueErrors
        logger.warning("cannot be read, counts as empty file=%s error=%s", path, error)
    return None


def remember(path: Path, value: object) -> None:
    """Replace a file that `recall` reads. A full disk is logged, and no error."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(value)))
    except OSError as error:
        logger.warning("not remembered file=%s error=%s", path, error)


def open_to_read(path: Path, *, in_pieces: bool) -> FileIO | BufferedReader:
    """Open a file to be read with `read_places`.

    `in_pieces`: at many places, which may be a few hundred bytes each, and near each other.

    Raises:
        OSError: it cannot be opened.
    """
    file = path.open("rb", buffering=0)
    return BufferedReader(file, _PIECES) if in_pieces else file


def read_places(
    file: FileIO | BufferedReader, places: Iterable[tuple[int, int]], view: memoryview
) -> int:
    """Fill a view from these places (position, length) of an open file, in their order.

    Returns:
        How many bytes were read; fewer than asked for if the file ends before.
    """
    filled = 0
    for position, length in places:
        file.seek(position)
        end = filled + length
        while filled < end:
            count = file.readinto(view[filled:end])
            if not count:
                return filled
            filled += count
    return filled


def sync_folder(folder: Path, *, system: str = sys.platform) -> None:
    """Make the folder's entries durable. Call it after a rename, before relying on it.

    Args:
        folder: in which something was renamed.
        system: as in `sys.platform`. Windows cannot flush a folder; NTFS journals the rename.
    """
    if system == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(
    path: Path, *, wait_s: float = 0.0, check: Callable[[], None] = lambda: None
) -> Generator[None]:
    """Hold the lock on a file. The system releases it when the process ends for any reason.

    Args:
        path: of the file, which is made if it is missing.
        wait_s: how long another process that holds it is waited for, in seconds.
        check: called between two tries; what it raises ends the waiting.

    Raises:
        TimeoutError: another process still holds it.
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
    try:
        deadline = time.monotonic() + wait_s
        while not try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise TimeoutError
            check()
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def try_lock(descriptor: int) -> bool:
    """Lock an open file. Returns False if another process has the lock.

    The system frees the lock when the file is closed or the process ends. Do not delete the file
    afterwards: a third process could lock a new file while a second one waits for the old.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
