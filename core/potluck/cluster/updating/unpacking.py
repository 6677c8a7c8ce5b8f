"""Unpacks a version beside the one in use, and tries it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from potluck.runtime.stopping import go_on
from potluck.update import archive
from potluck.update.versions import Versions


async def unpack(
    versions: Versions,
    file: Path,
    version: str,
    try_version: Callable[[Path, str, threading.Event], None],
) -> None:
    """Unpack a version's archive, and give it its name if it starts. Nothing is left of one that was cancelled.

    Raises:
        PotluckError: it is no such archive, does not start, or the disk refuses it.
    """
    stopped = threading.Event()

    def work() -> None:
        with versions.unpacking(lambda: go_on(stopped)):
            if versions.current == version:
                return  # another node of this installation has switched to it
            new = versions.new(version)
            archive.unpack(file, new, stopped)
            try_version(new, version, stopped)
            versions.add(version)

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait([working])
        with suppress(BaseException):
            working.result()
        raise
