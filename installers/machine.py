"""What this machine is and lacks: its display and GPUs, the libraries of Qt, a Python and its pip.

Standard library only, and free of effects: nothing here writes or installs.
"""

from __future__ import annotations  # an older Python must live to be told that it is too old

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CUDA_13_DRIVER = 580  # the first driver series that runs CUDA 13
CUDA_12_DRIVER = 525  # the first that runs every CUDA 12
CUDA_13_CAPABILITY = (7, 5)  # CUDA 13 dropped the GPUs before Turing

# What the Qt wheels need of the system, and the Debian package that holds it.
QT_LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
}
X11_LIBRARIES = {  # in addition, to draw on an X server
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-shape.so.0": "libxcb-shape0",
}


def has_display(system: str, environ: Mapping[str, str]) -> bool:
    """Whether a window can be opened; Windows and macOS always have a desktop."""
    return system != "Linux" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def draws_on_x11(environ: Mapping[str, str]) -> bool:
    """Whether a window is drawn by an X server; where there is Wayland, Qt takes that."""
    return bool(environ.get("DISPLAY")) and not environ.get("WAYLAND_DISPLAY")


def torch_variant(system: str, machine: str, gpus: str | None) -> str | None:
    """Which build of torch suits this machine.

    Args:
        system: as `platform.system()` says it.
        machine: as `platform.machine()` says it.
        gpus: lines "driver version, compute capability", or None where NVIDIA's tool is missing.

    Returns:
        The name of PyTorch's index for it, or None where PyPI's own build is the right one.
    """
    if system == "Darwin" or (system == "Windows" and machine != "AMD64"):
        return None
    without_gpu = "cpu" if system == "Linux" else None
    cards = [line.split(",") for line in (gpus or "").splitlines() if line.count(",") == 1]
    try:
        driver = min(int(card[0].split(".")[0]) for card in cards)
        capability = min(tuple(int(n) for n in card[1].strip().split(".")) for card in cards)
    except ValueError:  # no card, or one that does not say what it is
        return without_gpu
    if driver >= CUDA_13_DRIVER and capability >= CUDA_13_CAPABILITY:
        return "cu130"
    return "cu126" if driver >= CUDA_12_DRIVER else without_gpu


def nvidia_gpus() -> str | None:
    """What NVIDIA's tool says of each GPU: driver version, compute capability; None without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def missing_libraries(
    libraries: Mapping[str, str], load: Callable[[str], object] = ctypes.CDLL
) -> dict[str, str]:
    """Those of the libraries that this system cannot load, with their packages."""
    missing = {}
    for library, package in libraries.items():
        try:
            load(library)
        except OSError:
            missing[library] = package
    return missing


def venv_version(folder: Path, python: Path) -> tuple[int, int] | None:
    """The Python of a virtual environment; None where it does not run, or is not what it was.

    When the system's Python goes from 3.11 to 3.12, an environment made from it runs on and finds
    none of its packages.
    """
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    running = version_in(output_of([python, "-I", "-S", "-c", code]), r"(\d+)\.(\d+)")
    try:
        config = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return running if (folder / "conda-meta").is_dir() else None  # conda's have no such file
    # `version` is what venv writes, `version_info` is what uv and virtualenv write.
    made_for = version_in(config, r"(?m)^version(?:_info)? *= *(\d+)\.(\d+)")
    return running if running == made_for else None


def pip_version(python: Path) -> tuple[int, int] | None:
    """The pip of a Python; None where it has none that runs."""
    return version_in(output_of([python, "-m", "pip", "--version"]), r"^pip (\d+)\.(\d+)")


def output_of(command: Sequence[str | Path]) -> str:
    """What a command prints; nothing where it fails or cannot be run."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def version_in(text: str, pattern: str) -> tuple[int, int] | None:
    """The two numbers that the pattern finds in a text."""
    found = re.search(pattern, text)
    return (int(found[1]), int(found[2])) if found else None
