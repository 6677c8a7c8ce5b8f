"""A display without a screen, to see windows of packages on."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from native.networks import until
from native.project import BuildError
from native.roots import Root, run

_SETTLE_S = 3  # for the picture alone: until the node has said what it knows


def is_mapped(shown: str) -> bool:
    """Return whether a window of class Potluck is seen; Qt has others, of one pixel and no class."""
    ask = ["xwininfo", "-display", shown]
    tree = subprocess.run([*ask, "-root", "-tree"], capture_output=True, text=True).stdout
    found = re.search(r'^ +(0x[0-9a-f]+) .*"Potluck"\) ', tree, re.MULTILINE)
    if found is None:
        return False
    one = subprocess.run([*ask, "-id", found[1]], capture_output=True, text=True)
    return "IsViewable" in one.stdout


def _has(number: int, process: int) -> bool:
    """Whether a display is that of this X server, and answers."""
    lock, socket = Path(f"/tmp/.X{number}-lock"), Path(f"/tmp/.X11-unix/X{number}")  # noqa: S108 - X's own places
    try:
        return lock.read_text().strip() == str(process) and socket.exists()
    except OSError:
        return False


@contextmanager
def display(number: int) -> Iterator[str]:
    """An X server without a screen. Its abstract socket is seen in every root."""
    words = ["Xvfb", f":{number}", "-screen", "0", "1280x800x24", "-ac", "-nolisten", "tcp"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as server:
        try:
            until(
                lambda: server.poll() is not None or _has(number, server.pid),
                20,
                "the X server starts, or ends",
            )
            if server.poll() is not None:
                raise BuildError(f"Display :{number} is taken. Name another one: --display NUMBER")
            yield f":{number}"
        finally:
            server.terminate()


def see(root: Root, words: Sequence[str], number: int, picture: Path, *, limit_s: float) -> float:
    """Start the window in a root on a display of its own, take a picture, and end it. Returns the seconds until it was seen.

    Args:
        root: where it is.
        words: that start it.
        number: of the display.
        picture: the file for it.
        limit_s: how long it is waited for.

    Raises:
        BuildError: it is not seen in time, or ends.
    """
    with display(number) as shown:
        begun = time.monotonic()
        command = root.command(*words, DISPLAY=shown)
        with (
            tempfile.TemporaryFile("w+") as said,
            subprocess.Popen(command, stderr=said) as process,
        ):
            try:
                until(
                    lambda: process.poll() is not None or is_mapped(shown),
                    limit_s,
                    "the window opens, or ends",
                )
                if process.poll() is not None:
                    said.seek(0)
                    raise BuildError(f"not so: the window is open\n{said.read()[-2000:]}")
                took_s = time.monotonic() - begun
                time.sleep(_SETTLE_S)
                run("import", "-display", shown, "-window", "root", str(picture))
                return took_s
            finally:
                process.terminate()
