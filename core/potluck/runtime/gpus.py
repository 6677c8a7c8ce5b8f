"""Which build of torch suits a computer's GPU and its driver.

Standard library only, and read by an older Python, too: `installers/run.py` uses it before anything is installed.
"""

from __future__ import annotations

import shutil
import subprocess

CUDA_13_DRIVER = 580  # the first driver series that runs CUDA 13
CUDA_12_DRIVER = 525  # the first driver series that runs every CUDA 12
CUDA_13_CAPABILITY = (7, 5)  # CUDA 13 does not run on GPUs older than Turing


def torch_variant(system: str, machine: str, gpus: str | None) -> str | None:
    """Return which build of torch suits this machine.

    Args:
        system: the value of `platform.system()`.
        machine: the architecture of this Python, as `platform.machine()` names it.
        gpus: lines "driver version, compute capability"; None: NVIDIA's tool is missing.

    Returns:
        The name of PyTorch's package index; None: the build on PyPI suits.
    """
    if system == "Darwin":
        return None
    if system == "Windows" and machine != "AMD64":
        return "cpu"  # PyPI has none for Windows on Arm
    without_gpu = "cpu" if system == "Linux" else None
    cards = [line.split(",") for line in (gpus or "").splitlines() if line.count(",") == 1]
    try:
        driver = min(int(card[0].split(".")[0]) for card in cards)
        capability = min(tuple(int(n) for n in card[1].strip().split(".")) for card in cards)
    except ValueError:  # no card, or one without these figures
        return without_gpu
    if driver >= CUDA_13_DRIVER and capability >= CUDA_13_CAPABILITY:
        return "cu130"
    return "cu126" if driver >= CUDA_12_DRIVER else without_gpu


def nvidia_gpus() -> str | None:
    """Return driver version and compute capability of each GPU; None without NVIDIA's tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(  # noqa: S603 - NVIDIA's own tool
            query, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
