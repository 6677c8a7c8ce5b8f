"""Start a process of this program, whose stdin and stdout are pipes to the node."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import potluck
from potluck.system.starting import hidden


async def start_process(
    module: str,
    log_path: Path,
    environment: Mapping[str, str],
    *,
    engine: Path | None = None,
) -> asyncio.subprocess.Process:
    """Start a module of this package.

    Args:
        module: its full name; it is run as `__main__`.
        log_path: a file that takes what the process writes to stderr, in place of what it had.
        environment: variables in addition to those of the node, whose own win.
        engine: a folder with torch, where it was installed apart from this Python.

    Raises:
        OSError: the process cannot be started, or the log cannot be written.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environment, **os.environ, "PYTHONPATH": _python_path(engine)},
            creationflags=hidden(),
        )
    finally:
        os.close(log)  # the process has its own


def keep_log(path: Path) -> Path:
    """Move the log of a process that has ended, for the next process. Returns its new path."""
    previous = path.with_suffix(".previous.log")
    try:
        path.replace(previous)
    except FileNotFoundError:  # it was moved when that process ended
        return previous
    except OSError:  # Windows: another program has it open
        return path
    return previous


def _python_path(engine: Path | None) -> str:
    """Where the process finds this package, so that a checkout runs without being installed, and torch."""
    package_folder = str(Path(potluck.__file__).parent.parent)
    others = os.environ.get("PYTHONPATH"), str(engine) if engine is not None else None
    return os.pathsep.join([package_folder, *filter(None, others)])
