"""Keep the computer from falling asleep while it is used, and no longer.

What a system holds ends with this process, also with one that was killed: a helper program that waits
for us, or a state of one of our threads.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

RELEASE_S: Final = 30.0  # after the last use: the next prompt may come soon

_CONTINUOUS: Final = 0x80000000  # ES_CONTINUOUS: until it is set anew
_SYSTEM_REQUIRED: Final = 0x00000001  # ES_SYSTEM_REQUIRED

Hold: TypeAlias = Callable[[], Callable[[], None] | None]
"""Keeps the computer awake, and returns what ends that; None: this system has no way to do so."""


class Awake:
    """Holds the computer awake from the first use until some time after the last one.

    Args:
        hold: as `holding` returns.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._release: Callable[[], None] | None = None
        self._used_s: float | None = None  # None: it may sleep

    def look(self, *, is_used: bool, now_s: float) -> None:
        """Take whether the computer is used at this monotonic time. Call it every few seconds."""
        if is_used:
            if self._used_s is None:
                self._release = self._hold()
            self._used_s = now_s
        elif self._used_s is not None and now_s - self._used_s >= RELEASE_S:
            self.end()

    def end(self) -> None:
        """Let the computer sleep again."""
        release, self._release, self._used_s = self._release, None, None
        if release is not None:
            release()


def holding(system: str = sys.platform) -> Hold:
    """Return how a system is kept awake, by its name in `sys.platform`."""
    if system == "win32":
        return lambda: hold_on_windows(getattr(ctypes, "windll", None))
    if system == "darwin":  # -i: no sleep while idle; -w: until this process ends
        return lambda: hold_by(["caffeinate", "-i", "-w", str(os.getpid())])
    return lambda: hold_by(
        [
            "systemd-inhibit",
            "--what=idle:sleep",
            "--who=Potluck",
            "--why=A language model answers",
            "cat",  # it ends when its input does: when we close it, and when we are gone
        ]
    )


def hold_by(command: Sequence[str]) -> Callable[[], None] | None:
    """Hold as long as a program runs; closing its input or ending it ends that."""
    if (program := shutil.which(command[0])) is None:
        return None
    try:
        process = subprocess.Popen(  # noqa: S603 - fixed words
            [program, *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None

    def release() -> None:
        process.terminate()
        process.communicate()  # closes its input, and waits for the end

    return release


def hold_on_windows(windll: Any) -> Callable[[], None] | None:
    """Hold by a state of this thread, which has to end it as well."""
    if windll is None:
        return None
    set_state = windll.kernel32.SetThreadExecutionState
    if not set_state(_CONTINUOUS | _SYSTEM_REQUIRED):
        return None

    def release() -> None:
        set_state(_CONTINUOUS)

    return release
