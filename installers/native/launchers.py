"""The programs of a tree that a person or a desktop starts. Each finds the tree by where it lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FILES = Path(__file__).resolve().parent / "files"


def write(tree: Path, *, windows: bool = os.name == "nt") -> None:
    """Write the launchers into `bin` of a tree.

    On Windows there is one, for terminals: what opens the window there is a shortcut to Python without
    a console (`windows.py`).
    """
    folder = tree / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    if windows:
        text = (FILES / "potluck.cmd").read_text(encoding="utf-8")
        (folder / "potluck.cmd").write_text(text, encoding="utf-8", newline="\r\n")
        return
    for name in ("potluck", "potluck-window"):
        copy(f"{name}.sh", folder / name, executable=True)


def copy(name: str, target: Path, *, executable: bool = False) -> None:
    """Copy one of the files that belong to packages."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILES / name, target)
    target.chmod(0o755 if executable else 0o644)


def fill(name: str, target: Path, values: dict[str, str]) -> None:
    """Write one of these files, with values in place of names in braces."""
    text = (FILES / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    target.chmod(0o644)
