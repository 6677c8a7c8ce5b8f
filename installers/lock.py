"""A lock file that keeps two starts from installing into one environment.

Uses the standard library only.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2


@contextmanager
def exclusive(file: Path, on_wait: Callable[[], None]) -> Generator[None, None, None]:
    """Hold the lock; wait without a limit if another process has it.

    `on_wait` is called once before waiting. The system releases the lock when the process ends for
    any reason. The file must not be deleted: while a second process waits for the lock of the
    deleted file, a third one could lock a new file.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _try_lock(descriptor):
            on_wait()
            while not _try_lock(descriptor):
                time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take the lock; return False if another process has it.

    A file system without locks counts as success.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX, Windows
        return False
    except OSError:
        return True
    return True
