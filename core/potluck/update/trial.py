"""Tries an unpacked version: a process of its own Python imports all of it, and says its version.

It opens no port and writes nothing: whether it comes up with this user's settings is seen when it is switched to
(`versions.py`).
"""

import logging
import os
import subprocess
import threading
from pathlib import Path
from typing import Final

from potluck.errors import PotluckError
from potluck.runtime.trial import SHOWN, run

logger = logging.getLogger(__name__)

TRIAL_S: Final = 120.0  # the first start of a new program, with a virus scanner in between
_CODE: Final = """\
import importlib.util
import potluck, potluck.cli, potluck.cluster.serving, potluck.hub.process
if importlib.util.find_spec("PySide6") is not None:
    try:
        import potluck_app.application
    except ImportError as error:
        if "potluck" in str(error.name):  # else a library of the system that windows need, as before
            raise
print(potluck.__version__)
"""


class TrialError(PotluckError):
    """A version does not work on this computer."""

    code = "update_trial"


def try_version(
    tree: Path, version: str, stopped: threading.Event, *, timeout_s: float = TRIAL_S
) -> None:
    """Have the version in a tree start.

    Raises:
        StoppedError: `stopped` was set; the process was killed.
        TrialError: it does not start, or is another version.
    """
    command = [str(tree / "python" / "bin" / "python3"), "-P", "-s", "-c", _CODE]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        trial = run(command, tree, environ, stopped, timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("version %s cannot be tried: %s", version, error)
        raise _does_not_start(version) from error
    if trial.returncode != 0 or trial.stdout.strip() != version:
        said, problem = trial.stdout[:64], trial.stderr[-SHOWN:]
        logger.warning("version %s does not start: %s %s", version, said, problem)
        raise _does_not_start(version)


def _does_not_start(version: str) -> TrialError:
    return TrialError(
        f"Potluck {version} does not start on this computer; the log says why (potluck logs). The version that is"
        " here is used on."
    )
