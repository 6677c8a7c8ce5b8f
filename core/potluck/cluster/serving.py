"""The process of a node: one for each user, with a log, which ends when it is asked to."""

import asyncio
import logging
import logging.handlers
import signal
from contextlib import suppress
from pathlib import Path

from potluck.cluster.node import Node
from potluck.settings import Folders, exclusive

_LOG_BYTES = 2_000_000


def run(folders: Folders) -> None:
    """Run this user's node on this computer until it ends.

    Raises:
        AlreadyRunningError: another process runs it already.
    """
    with exclusive(folders.node_lock):
        _log_to(folders.log_file)
        asyncio.run(_run(folders))


async def _run(folders: Folders) -> None:
    node = Node(folders)
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM"):
        with suppress(NotImplementedError, AttributeError):  # Windows has no such handlers
            loop.add_signal_handler(getattr(signal, name), node.stop)
    await node.run()


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
