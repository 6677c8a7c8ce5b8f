"""A checkout whose environment the scripts of `installers/` may change."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installer import INSTALLERS, run


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in a folder of its own, with an environment that can run but holds nothing."""
    shutil.copytree(INSTALLERS, tmp_path / "installers", ignore=shutil.ignore_patterns("__*"))
    shutil.copy(INSTALLERS.parent / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    for name, path in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "LOG": tmp_path / ".venv/setup.log",
        "STAMPS": tmp_path / ".venv/potluck-setup.json",
        "LOCK": tmp_path / ".venv.lock",
    }.items():
        monkeypatch.setattr(run, name, path)
    return tmp_path
