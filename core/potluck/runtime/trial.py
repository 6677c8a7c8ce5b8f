"""Tries an unpacked engine: a process of its own imports torch and multiplies."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from potluck.errors import EngineError
from potluck.system.starting import hidden

logger = logging.getLogger(__name__)

TRIAL_S: Final = (
    180.0  # the first import reads a gigabyte from the disk, with a virus scanner in between
)
_SHOWN: Final = 2000  # characters of what went wrong, in the log
_CODE: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
import torch
ones = torch.ones(8, 8)
assert float((ones @ ones)[0, 0]) == 8.0, "it multiplies wrongly"
print(torch.__version__)
"""


def try_engine(folder: Path, *, timeout_s: float = TRIAL_S) -> str:
    """Have the engine in a folder multiply.

    Returns:
        Its version, as it calls itself.

    Raises:
        EngineError: it does not work on this computer.
    """
    command = [sys.executable, "-s", "-c", _CODE, str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        answer = subprocess.run(  # noqa: S603 - our own Python
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            cwd=folder,
            creationflags=hidden(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the engine cannot be tried folder=%s error=%s", folder, error)
        raise _does_not_work() from error
    if answer.returncode != 0:
        logger.warning("the engine does not work: %s", answer.stderr[-_SHOWN:])
        raise _does_not_work()
    return answer.stdout.strip()[:64]


def _does_not_work() -> EngineError:
    return EngineError(
        "The engine does not work on this computer; the log says why (potluck logs). What was there before is"
        " used on."
    )
