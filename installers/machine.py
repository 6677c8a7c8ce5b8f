"""What this machine has and lacks: a display, GPUs, the libraries of Qt, a Python and its pip.

Uses the standard library only. Nothing here writes or installs.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "core"))
from potluck.runtime.gpus import (
    nvidia_gpus,
    torch_variant,
)  # the installed engine has the same rule

__all__ = ["nvidia_gpus", "torch_variant"]

# The system libraries that the Qt wheels need, and their Debian packages.
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


def has_display(system: str, environ: Mapping[str, str]) -> bool:
    """Return whether a window can be opened. Windows and macOS always have a desktop."""
    return system != "Linux" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def draws_on_x11(environ: Mapping[str, str]) -> bool:
    """Return whether Qt draws on an X server; if there is Wayland, Qt prefers it."""
    return bool(environ.get("DISPLAY")) and not environ.get("WAYLAND_DISPLAY")


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


def venv_version(folder: Path, python: Path) -> tuple[int, int] | None:
    """Return the Python version of a virtual environment; None if the environment is broken.

    It is broken if its Python does not run or has another version than at the start: when the
    system goes from Python 3.11 to 3.12, an environment runs on but finds none of its packages.
    """
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    running = version_in(output_of([python, "-I", "-S", "-c", code]), r"(\d+)\.(\d+)")
    try:
        config = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        # Environments of conda have no pyvenv.cfg.
        return running if (folder / "conda-meta").is_dir() else None
    # venv writes `version`; uv and virtualenv write `version_info`.
    made_for = version_in(config, r"(?m)^version(?:_info)? *= *(\d+)\.(\d+)")
    return running if running == made_for else None


def pip_version(python: Path) -> tuple[int, int] | None:
    """Return the version of a Python's pip; None if it has no pip that runs."""
    return version_in(output_of([python, "-m", "pip", "--version"]), r"^pip (\d+)\.(\d+)")


def output_of(command: Sequence[str | Path]) -> str:
    """Return the output of a command; "" if it fails or cannot be run."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def version_in(text: str, pattern: str) -> tuple[int, int] | None:
    """Return the two numbers that the pattern finds in a text."""
    found = re.search(pattern, text)
    return (int(found[1]), int(found[2])) if found else None
