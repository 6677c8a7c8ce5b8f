"""A folder that belongs to one process at a time. The system frees it when the process ends."""

import os
import sys
from pathlib import Path

from potluck.errors import StoreError

if sys.platform == "win32":
    import msvcrt

    def _acquire(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _acquire(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


NAME = ".lock"  # stays when it is released: removing it would race


class FolderLock:
    """Held from its making to `release`.

    Raises:
        StoreError: another process has the folder, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} for weights cannot be used: {error.strerror}.",
                folder=str(folder),
            ) from error
        try:
            _acquire(self._handle)
        except OSError as error:
            os.close(self._handle)
            raise StoreError(
                f"Another Potluck uses the folder {folder}. Stop it, or start this one with"
                " another --home.",
                folder=str(folder),
            ) from error

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
