"""Write small files so that a crash leaves the old one or the new one, never half of one."""

import os
import secrets
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
