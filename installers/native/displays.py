"""A display without a screen, to see windows of packages on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from native.networks import until


def is_mapped(shown: str) -> bool:
    """Return whether a window of class Potluck is seen; Qt has others, of one pixel and no class."""
    ask = ["xwininfo", "-display", shown]
    tree = subprocess.run([*ask, "-root", "-tree"], capture_output=True, text=True).stdout
    found = re.search(r'^ +(0x[0-9a-f]+) .*"Potluck"\) ', tree, re.MULTILINE)
    if found is None:
        return False
    one = subprocess.run([*ask, "-id", found[1]], capture_output=True, text=True)
    return "IsViewable" in one.stdout


@contextmanager
def display(number: int) -> Iterator[str]:
    """An X server without a screen. Its abstract socket is seen in every root."""
    words = ["Xvfb", f":{number}", "-screen", "0", "1280x800x24", "-ac", "-nolisten", "tcp"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as server:
        try:
            socket = Path(f"/tmp/.X11-unix/X{number}")  # noqa: S108 - X's own place
            until(socket.exists, 20, "the X server starts")
            yield f":{number}"
        finally:
            server.terminate()
