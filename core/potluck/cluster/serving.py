"""The process of a node: one for each user, with a log, which ends when it is asked to."""

import asyncio
import logging
import logging.handlers
import os
import signal
from contextlib import suppress
from pathlib import Path

from potluck.cluster.node import Node
from potluck.settings import Folders, exclusive
from potluck.system.limits import allow_files

_LOG_BYTES = 2_000_000
_OPEN_FILES = 4096  # two HTTP listeners have 256 connections each; models have files, links sockets
ENDING_S = 10.0  # for the node before to end: it takes the model out of force first


def run(folders: Folders, *, wait_s: float = ENDING_S) -> bool:
    """Run this user's node on this computer until it ends.

    Returns:
        Whether another one is to be started in its place: of the version that is in use now.

    Args:
        folders: of the node.
        wait_s: how long a node that is just ending is waited for, in seconds.

    Raises:
        AlreadyRunningError: another process runs it already.
    """
    os.umask(0o077)  # weights, computers and logs are this user's alone, also of stage processes
    with exclusive(folders.node_lock, wait_s=wait_s):
        _log_to(folders.log_file)
        allow_files(_OPEN_FILES)
        return asyncio.run(_run(folders))


async def _run(folders: Folders) -> bool:
    node = Node(folders)
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM"):
        with suppress(NotImplementedError, AttributeError):  # Windows has no such handlers
            loop.add_signal_handler(getattr(signal, name), node.interrupt)
    await node.run()
    return node.has_successor


def _in_one_line(record: logging.LogRecord) -> bool:
    """Leave out the traceback of an error of the network: zeroconf has one when a cable is pulled.

    The message says what happened. The result means that the record is logged.
    """
    if record.name == "zeroconf" and record.exc_info and isinstance(record.exc_info[1], OSError):
        record.exc_info = record.exc_text = None
    return True


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.addFilter(_in_one_line)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
