"""What the packages are made of and called: the version, the date, the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = "3.13"  # of the packages; on Windows, its clock is finer than 16 ms, as 3.12's is not
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


class BuildError(Exception):
    """A package cannot be built. The message is a sentence for who builds it."""


def version(root: Path = ROOT) -> str:
    """Return the version of the project, as hatchling reads it."""
    text = (root / "core" / "potluck" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise BuildError("core/potluck/__init__.py says no __version__.")
    return found[1]


def epoch(root: Path = ROOT) -> int:
    """Return the time that all files in a package have, in seconds.

    It is SOURCE_DATE_EPOCH (reproducible-builds.org), else that of the last commit.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        if not re.fullmatch(r"\d{1,11}", given):
            raise BuildError(f"SOURCE_DATE_EPOCH is {given!r}, which is no number of seconds.")
        return int(given)
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise BuildError(
            "This is no checkout with commits, so nothing says the date of the package. Set"
            " SOURCE_DATE_EPOCH to a number of seconds."
        ) from None


def machine(name: str | None = None) -> str:
    """Return this machine's architecture as file names have it: x86_64 or aarch64."""
    found = (name or platform.machine()).lower()
    return _MACHINES.get(found, found)


def release_keys(root: Path = ROOT) -> list[str]:
    """Return the public keys that packages believe: of the file, and of POTLUCK_RELEASE_KEYS for a trial."""
    text = (root / "installers" / "release_keys.txt").read_text(encoding="utf-8")
    lines = [*text.splitlines(), *os.environ.get("POTLUCK_RELEASE_KEYS", "").split()]
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def release_index() -> str:
    """Return the address that packages ask for newer versions; empty: nobody publishes them.

    It is POTLUCK_RELEASE_INDEX, else that of the newest release of the repository whose workflow this is.
    """
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    usual = f"https://github.com/{repository}/releases/latest/download/release.json"
    return os.environ.get("POTLUCK_RELEASE_INDEX", usual if repository else "")


def maintainer(root: Path = ROOT) -> str:
    """Return who answers for the packages, as Debian writes it: `Name <address>`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = project["maintainers"][0]
    return f"{first['name']} <{first['email']}>"


def package_name(system: str, suffix: str, *, root: Path = ROOT, arch: str | None = None) -> str:
    """Return the file name of a package, such as `potluck-0.1.0-linux-x86_64.tar.xz`."""
    return f"potluck-{version(root)}-{system}-{machine(arch)}{suffix}"
