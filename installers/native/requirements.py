"""The lock: exact versions and hashes of everything in a package, for all systems.

It is made from `pyproject.toml` without torch, which is no part of a package: which build of it
suits is known on the user's computer alone. The first line of the lock names what it was made from,
so that a change of the dependencies without a new lock is noticed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from native.project import PYTHON, ROOT, BuildError

LOCK = ROOT / "installers" / "locks" / "app.txt"
_LATER = ("torch",)  # installed by `potluck engine install`
_MADE_FROM = "# made from: "


def app_requirements(root: Path = ROOT) -> list[str]:
    """Return the dependencies of the project that are in a package."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project.get("optional-dependencies", {})
    every = [*project["dependencies"], *(line for group in groups.values() for line in group)]
    return sorted({line for line in every if _name(line) not in _LATER})


def made_from(requirements: list[str], python: str = PYTHON) -> str:
    """Return what the first line of a lock of these requirements says."""
    text = "\n".join([f"python {python}", *requirements])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_current(lock: Path = LOCK, root: Path = ROOT) -> bool:
    """Return whether the lock was made from what `pyproject.toml` says now."""
    try:
        first = lock.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return False
    return first == _MADE_FROM + made_from(app_requirements(root))


def write_lock(lock: Path = LOCK, root: Path = ROOT, *, upgrade: bool = False) -> None:
    """Write the lock anew. What is in it stays at its version, unless it is to be upgraded."""
    requirements = app_requirements(root)
    part, compiler = lock.with_suffix(".part"), uv()
    if lock.exists():
        shutil.copyfile(lock, part)
    command = [*compiler, "pip", "compile", "-", "--universal", "--generate-hashes", "--no-header"]
    command += ["--no-annotate", "--quiet", "--python-version", "3.11", "--output-file", str(part)]
    if upgrade:
        command += ["--upgrade"]
    try:
        _run(command, "\n".join(requirements))
        text = f"{_MADE_FROM}{made_from(requirements)}\n{part.read_text(encoding='utf-8')}"
        lock.write_text(text, encoding="utf-8")
    finally:
        part.unlink(missing_ok=True)


def uv() -> list[str]:
    """Return the command of uv, which installs what a package has in it."""
    if (found := shutil.which("uv")) is not None:
        return [found]
    module = [sys.executable, "-m", "uv"]
    try:
        subprocess.run([*module, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(
            "uv is missing. Install it with `pip install uv`, then try again."
        ) from None
    return module


def _run(command: list[str], text: str) -> None:
    ended = subprocess.run(command, input=text, text=True, capture_output=True)
    if ended.returncode:
        raise BuildError(f"uv could not make the lock:\n{ended.stderr.strip()}")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
