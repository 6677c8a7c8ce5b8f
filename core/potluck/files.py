"""Files that survive a crash, and files that one process has at a time."""

import os
import secrets
import sys
from pathlib import Path

PRIVATE = 0o600  # owner only, from the first byte
SHARED = 0o644


def write_atomically(path: Path, data: bytes, *, mode: int = SHARED) -> None:
    """Replace the file's content as a whole, and make it survive a power cut.

    Its folder is made where it is missing. The mode holds from the file's first byte on. Windows has
    none of this kind: there the user's own folder protects the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's names as durable as its files: after a rename, before it is relied on."""
    if os.name == "nt":  # Windows has no handle on a folder to flush; NTFS journals the rename
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; False: another process has it.

    The system frees it when the file is closed or the process ends. Whoever is done with it must not
    delete the file: a third process could then lock a new one while a second still waits for this.
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
