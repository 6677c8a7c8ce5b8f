"""A lock file, so that two starts do not install into one environment. Standard library only."""

from __future__ import annotations  # an older Python must live to be told that it is too old

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2


@contextmanager
def exclusive(file: Path, on_wait: Callable[[], None]) -> Generator[None, None, None]:
    """Hold this lock, however long another process has it; `on_wait` is called once if one does.

    The system drops the lock when the process ends, however it ends. The file stays: who deletes it
    lets a third process lock a new one while a second still waits for the old.
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
    """Take the lock; False while another process has it. A file system without locks grants it."""
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
