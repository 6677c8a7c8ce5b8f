"""Write a small file so that a reader finds the old one or the new one, never half of either."""

import os
import tempfile
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Replace the file's content in one step; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
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
