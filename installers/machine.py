"""What this machine has and lacks: a display, GPUs, the libraries of Qt, a Python and its pip.

Uses the standard library only. Nothing here writes or installs.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

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
from potluck.system.qt_libraries import (
    QT_LIBRARIES,
    X11_LIBRARIES,
    missing_libraries,
)  # the window says which are missing

__all__ = ["QT_LIBRARIES", "X11_LIBRARIES", "missing_libraries", "nvidia_gpus", "torch_variant"]

# What the Qt wheels for Linux on Arm need: the last ones for an older C library are for these Pythons.
QT_GLIBC = (2, 39)
OLDER_QT_GLIBC = (2, 31)
OLDER_QT_PYTHON = (3, 13)


def has_display(system: str, environ: Mapping[str, str]) -> bool:
    """Return whether a window can be opened. Windows and macOS always have a desktop."""
    return system != "Linux" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def has_qt(
    system: str, machine: str, libc: tuple[str, str], python: tuple[int, ...] = sys.version_info[:2]
) -> bool:
    """Return whether there are wheels of Qt for this system and Python.

    Args:
        system: the value of `platform.system()`.
        machine: the value of `platform.machine()`.
        libc: the value of `platform.libc_ver()`.
        python: the version of Python.
    """
    if system != "Linux" or machine != "aarch64":
        return True
    name, version = libc
    needed = OLDER_QT_GLIBC if python[:2] <= OLDER_QT_PYTHON else QT_GLIBC
    return name == "glibc" and (version_in(version, r"^(\d+)\.(\d+)") or ()) >= needed


def is_translated(system: str, ask: Callable[[Sequence[str]], str] | None = None) -> bool:
    """Return whether Rosetta translates this Python for an Apple processor, so that the Mac looks like one of Intel."""
    ask = ask or output_of
    return system == "Darwin" and ask(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"


def python_machine(machine: str, built_for: str) -> str:
    """Return the architecture of this Python. Windows on Arm runs those of x64 as well.

    Args:
        machine: the value of `platform.machine()`, which may be that of the processor.
        built_for: the value of `sysconfig.get_platform()`.
    """
    return {"win-amd64": "AMD64", "win-arm64": "ARM64"}.get(built_for, machine)


def draws_on_x11(environ: Mapping[str, str]) -> bool:
    """Return whether Qt draws on an X server; if there is Wayland, Qt prefers it."""
    return bool(environ.get("DISPLAY")) and not environ.get("WAYLAND_DISPLAY")


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
