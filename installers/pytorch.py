"""PyTorch for this machine: which build, from where, and what to do where there is none.

Uses the standard library only.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import platform
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from machine import is_translated, nvidia_gpus, python_machine, torch_variant
from terminal import SetupError, say

# PyTorch's own indexes, as its "Get started" page names them. The builds on PyPI are CUDA for Linux
# (3 GB), CPU for Windows, and none for Windows on Arm. A local version such as 2.13.0+cpu wins over
# PyPI's 2.13.0 when both are offered.
TORCH_INDEX = "https://download.pytorch.org/whl/"
INDEX_TIMEOUT_S = 5

INTEL_MAC = (
    "PyTorch is no longer made for Macs with an Intel processor, so this Mac cannot compute"
    " layers. Use Potluck on a Mac with an Apple processor, on Windows or on Linux."
)
FOREIGN_PYTHON = (
    "This Python is made for Macs with an Intel processor, and this Mac has one of Apple's. Install a"
    " Python for Apple silicon (python.org has it), delete the folder .venv, then start again with"
    " that Python."
)
WINDOWS_ON_ARM = (
    "This Python is made for Windows on Arm, for which PyPI has no PyTorch, and PyTorch's own site has"
    " it for some versions of Python only. Install a Python for"
    " x64 (python.org has it; this Windows runs it as well), delete the folder .venv, then start again"
    " with that Python."
)


def install_torch(requirement: str, python: Path, pip_install: Callable[..., None]) -> None:
    """Install the build of torch that suits this machine's GPU, system and drivers.

    Args:
        requirement: what `pyproject.toml` asks for.
        python: of the environment.
        pip_install: installs with that Python's pip; raises a SetupError if it cannot.

    Raises:
        SetupError: there is no build for this machine, or it does not start.
    """
    system = platform.system()
    processor = python_machine(platform.machine(), sysconfig.get_platform())
    if system == "Darwin" and processor == "x86_64":
        raise SetupError(FOREIGN_PYTHON if is_translated(system) else INTEL_MAC)
    variant = torch_variant(system, processor, nvidia_gpus())
    words = [requirement]
    if variant is not None:
        index = f"{TORCH_INDEX}{variant}"
        try:
            urllib.request.urlopen(f"{index}/torch/", timeout=INDEX_TIMEOUT_S).close()  # noqa: S310 (https)
            words += ["--extra-index-url", index]
        except (OSError, urllib.error.URLError):
            say(f"    PyTorch's index for {variant} cannot be reached; taking what pip finds")
    is_windows_on_arm = system == "Windows" and processor != "AMD64"
    try:
        pip_install(*words)
    except SetupError as error:
        raise SetupError(f"{error}\n\n{WINDOWS_ON_ARM}") if is_windows_on_arm else error from None
    if system == "Windows":
        add_runtime("arm64" if is_windows_on_arm else "x64", python, pip_install)


def add_runtime(kind: str, python: Path, pip_install: Callable[..., None]) -> None:
    """Install Microsoft's C++ runtime if torch needs it: a new Windows lacks it (WinError 126)."""
    check = [python, "-c", "import torch"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return
    if kind == "x64":  # the package has no other
        pip_install("msvc-runtime")
    if subprocess.run(check, capture_output=True).returncode != 0:
        raise SetupError(
            "PyTorch does not start on this Windows. Install the Microsoft Visual C++"
            f" Redistributable ({kind}) from Microsoft's site, then start again."
        )
