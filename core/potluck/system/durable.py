"""How many files are made to outlive a power cut, each in the way of its system."""

import os
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

_SYNC: Final[Callable[[], None]] = getattr(os, "sync", lambda: None)  # Windows has none


def keep_file(
    file: BinaryIO, *, system: str = sys.platform, flush: Callable[[int], None] = os.fsync
) -> None:
    """Make one of many files durable that was written, where `keep_all` cannot. Call it before it is closed.

    Args:
        file: open for writing.
        system: as in `sys.platform`.
        flush: makes a descriptor's file durable.

    Raises:
        OSError: the disk cannot take it.
    """
    if system != "linux":
        file.flush()
        flush(file.fileno())


def keep_all(*, system: str = sys.platform, sync: Callable[[], None] = _SYNC) -> None:
    """Make all files durable at once that were written and closed, after `keep_file` of each.

    On Linux that waits until they are on the disk, and takes much less time than file by file. Elsewhere `sync` does
    not wait, or is none.

    Args:
        system: as in `sys.platform`.
        sync: has the system write all that it holds.
    """
    if system == "linux":
        sync()
