"""The system libraries that Qt's wheels need on Linux, and what to say where they are missing.

Standard library only, and read by an older Python, too: `installers/machine.py` uses it before anything is installed.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

# The libraries, and their Debian packages.
QT_LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
}
X11_LIBRARIES = {  # needed in addition on an X server
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-shape.so.0": "libxcb-shape0",
}
# What shows a sentence without Qt. None of them is waited for.
_SHOWING = (
    ("notify-send", "--app-name=Potluck", "Potluck"),
    ("zenity", "--error", "--no-markup", "--title=Potluck", "--text"),
    ("kdialog", "--title", "Potluck", "--error"),
    ("xmessage",),
)


def missing_libraries(
    libraries: Mapping[str, str], load: Callable[[str], object] = ctypes.CDLL
) -> dict[str, str]:
    """Return the libraries that this system cannot load, with their packages."""
    missing = {}
    for library, package in libraries.items():
        try:
            load(library)
        except OSError:
            missing[library] = package
    return missing


def explain(error: ImportError, load: Callable[[str], object] = ctypes.CDLL) -> str | None:
    """Say why Qt cannot be imported, and what to install; None: not for the want of a library."""
    if not sys.platform.startswith("linux"):
        return None
    packages = missing_libraries(QT_LIBRARIES, load)
    # Qt itself may lack one, which the list does not know; the loader names the first.
    named = re.match(r"(?:\S*/)?(lib[\w.+-]+\.so[\d.]*): cannot open", str(error))
    libraries = [*packages, *([named[1]] if named and named[1] not in packages else [])]
    if not libraries:
        return None
    lacks = f"The window cannot open: this system lacks {', '.join(libraries)}."
    if not packages:
        return f"{lacks} Install the package that has it, then open Potluck again."
    install = f"sudo apt install {' '.join(packages.values())}"
    return f"{lacks} Install them (on Debian and Ubuntu: {install}), then open Potluck again."


def show(sentence: str) -> None:
    """Have the desktop show a sentence, where no terminal will."""
    if sys.stderr.isatty():
        return
    for name, *words in _SHOWING:
        if (program := shutil.which(name)) is not None:
            quiet = subprocess.DEVNULL
            command = [program, *words, sentence]
            subprocess.Popen(  # noqa: S603 - a desktop's own program
                command, stdout=quiet, stderr=quiet, start_new_session=True
            )
            return
