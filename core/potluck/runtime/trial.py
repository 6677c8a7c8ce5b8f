"""Tries an unpacked engine: a process of its own imports torch and multiplies."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from potluck.errors import EngineError
from potluck.runtime.stopping import go_on
from potluck.system.starting import hidden

logger = logging.getLogger(__name__)

TRIAL_S: Final = (
    180.0  # the first import reads a gigabyte from the disk, with a virus scanner in between
)
_KILLED_S: Final = 5.0  # until a process that was killed is gone
_LOOK_S: Final = 0.1  # between two looks whether it was stopped
SHOWN: Final = 2000  # characters of what went wrong, in the log
_CODE: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
import torch
ones = torch.ones(8, 8)
assert float((ones @ ones)[0, 0]) == 8.0, "it multiplies wrongly"
print(torch.__version__)
"""


def try_engine(folder: Path, stopped: threading.Event, *, timeout_s: float = TRIAL_S) -> str:
    """Have the engine in a folder multiply.

    Returns:
        Its version, as it calls itself.

    Raises:
        StoppedError: `stopped` was set; the process was killed.
        EngineError: it does not work on this computer.
    """
    command = [sys.executable, "-s", "-c", _CODE, str(folder)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        trial = run(command, folder, environ, stopped, timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the engine cannot be tried folder=%s error=%s", folder, error)
        raise _does_not_work() from error
    if trial.returncode != 0:
        logger.warning("the engine does not work: %s", trial.stderr[-SHOWN:])
        raise _does_not_work()
    return trial.stdout.strip()[:64]


def run(
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    stopped: threading.Event,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """Run a process in a folder to its end. It does not outlive this call.

    Raises:
        StoppedError: `stopped` was set.
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it takes longer than `timeout_s` seconds.
    """
    trial = subprocess.Popen(  # noqa: S603 - our own Python, or that of a package that was verified
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environ,
        cwd=folder,
        creationflags=hidden(),
    )
    output, problem = _wait(trial, stopped, timeout_s)
    return subprocess.CompletedProcess(command, trial.returncode, output, problem)


def _wait(
    trial: subprocess.Popen[str], stopped: threading.Event, timeout_s: float
) -> tuple[str, str]:
    """Return what a process writes until its end, and its errors."""
    until = time.monotonic() + timeout_s
    try:
        while True:
            go_on(stopped)
            try:
                return trial.communicate(timeout=_LOOK_S)  # called again, it has lost nothing
            except subprocess.TimeoutExpired:
                if time.monotonic() > until:
                    raise
    finally:
        if trial.poll() is None:
            trial.kill()
            with suppress(subprocess.TimeoutExpired):
                trial.communicate(timeout=_KILLED_S)


def _does_not_work() -> EngineError:
    return EngineError(
        "The engine does not work on this computer; the log says why (potluck logs). What was there before is"
        " used on."
    )
