"""A lock that gives a folder to one process. The system frees it when the process ends."""

import os
from pathlib import Path

from potluck.errors import StoreError
from potluck.files import make_folder, try_lock
from potluck.reasons import reason

NAME = ".lock"


class FolderLock:
    """The lock is held from construction until `release`.

    Raises:
        StoreError: another process has the folder, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            make_folder(folder)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} for weights cannot be used: {reason(error)}.",
                folder=str(folder),
            ) from error
        if not try_lock(self._handle):
            os.close(self._handle)
            raise StoreError(
                f"Another Potluck uses the folder {folder}. Stop it, or start this one with"
                " another --home.",
                folder=str(folder),
            )

    @property
    def is_in_place(self) -> bool:
        """Whether the locked file is still the one in the folder: false if somebody deleted it."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except OSError:
            return False

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
