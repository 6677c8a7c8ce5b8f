"""Ask the system's own programs, which only read."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Final, TypeAlias

from potluck.system.starting import hidden

DEADLINE_S: Final = 4.0
_FOLDERS: Final = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/libexec/ApplicationFirewall"

Ask: TypeAlias = Callable[..., str | None]
"""Runs a program with these words; its output, or None if it is not there, failed or took too long."""


def ask(*words: str, deadline_s: float = DEADLINE_S) -> str | None:
    """Run a program and return what it prints; None: it is not there, it failed or took too long."""
    program = shutil.which(words[0]) or shutil.which(words[0], path=_FOLDERS)
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
            creationflags=hidden(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
