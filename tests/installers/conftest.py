"""A checkout whose environment the scripts of `installers/` may change."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from installer import INSTALLERS, load


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder of its own, with an environment that can run but holds nothing."""
    shutil.copytree(INSTALLERS, tmp_path / "installers", ignore=shutil.ignore_patterns("__*"))
    shutil.copy(INSTALLERS.parent / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    return tmp_path


@pytest.fixture
def run(checkout: Path) -> ModuleType:
    """The script `run.py` of that checkout."""
    return load("run", checkout / "installers")
