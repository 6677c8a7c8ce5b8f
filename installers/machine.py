"""What this machine is and lacks: its display, the build of torch for it, the libraries of Qt.

Standard library only, and free of effects: nothing here writes or installs.
"""

from __future__ import annotations  # an older Python must live to be told that it is too old

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping

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
