"""The Python of a package, which is not the user's.

A release takes a standalone CPython (python-build-standalone, by `uv python install`), which is made
to be moved and needs an old glibc only. Where that cannot be downloaded, `--this-python` takes the
Python that runs the script, with the libraries that it is linked with; such a package needs a glibc
as new as the one here, and is for trials.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from native import libraries
from native.project import PYTHON, BuildError
from native.requirements import uv

_LEFT_OUT = (  # of the standard library: what no program of ours imports
    "config-*",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
    "turtledemo",
    "turtle.py",
    "site-packages",
    "__pycache__",
    "_test*.so",
    "_test*.pyd",
    "_ctypes_test*",
    "_tkinter*",
    "xxlimited*",
    "xxsubtype*",
    "nis.*.so",
    "*.a",
)


def install(target: Path, *, this_python: bool) -> Path:
    """Put a Python into a folder that is not there yet, and return its executable."""
    if this_python:
        _copy_this(target)
    else:
        _copy_standalone(target)
    python = executable(target)
    _check(python, target)
    return python


def executable(tree: Path) -> Path:
    """Return the Python in such a folder."""
    return tree / "python.exe" if os.name == "nt" else tree / "bin" / "python3"


def library_folder(tree: Path) -> Path:
    """Return the folder of its standard library."""
    if os.name == "nt":
        return tree / "Lib"
    found = sorted((tree / "lib").glob("python3.*"))
    if not found:
        raise BuildError(f"There is no Python in {tree}.")
    return found[-1]


def site_packages(tree: Path) -> Path:
    """Return the folder of its packages."""
    return library_folder(tree) / "site-packages"


def _copy_standalone(target: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [*uv(), "python", "install", PYTHON, "--install-dir", temporary, "--no-bin"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise BuildError(
                f"uv could not download CPython {PYTHON}:\n{ended.stderr.strip()}\nWhere it cannot be"
                " downloaded, --this-python makes a package for trials of the Python that runs this."
            )
        found = [f for f in Path(temporary).glob(f"cpython-{PYTHON}.*") if not f.is_symlink()]
        if len(found) != 1:
            raise BuildError(f"uv installed {len(found)} Pythons, in place of one.")
        ignore = shutil.ignore_patterns(*_LEFT_OUT, "include", "tcl*", "tk*", "share", "Doc")
        shutil.copytree(found[0], target, symlinks=True, ignore=ignore)
    if os.name != "nt":
        _keep_executables(target)


def _keep_executables(target: Path) -> None:
    """Leave Python alone in `bin`, which has scripts of pip and IDLE, too."""
    for file in (target / "bin").iterdir():
        if not file.name.startswith("python3") or file.name.endswith("-config"):
            file.unlink()


def _copy_this(target: Path) -> None:
    if sys.platform != "linux":
        raise BuildError("--this-python is for Linux alone; elsewhere, uv downloads a Python.")
    short = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = Path(sys.base_prefix)
    library = Path(
        sysconfig.get_path("stdlib", vars={"base": str(base), "installed_base": str(base)})
    )
    shutil.copytree(library, target / "lib" / short, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (target / "bin").mkdir()
    real = base / "bin" / short
    shutil.copy2(real.resolve(), target / "bin" / short)
    (target / "bin" / "python3").symlink_to(short)
    libraries.bundle([target / "bin" / short, *target.rglob("*.so")], target / "lib")


def _check(python: Path, target: Path) -> None:
    """Make sure that the Python of the folder starts, and believes to live there."""
    code = "import ctypes, sqlite3, ssl, sys; print(sys.prefix)"
    environ = {"PATH": os.environ.get("PATH", ""), "SYSTEMROOT": os.environ.get("SYSTEMROOT", "")}
    found = subprocess.run([python, "-I", "-c", code], env=environ, capture_output=True, text=True)
    if found.returncode or Path(found.stdout.strip()).resolve() != target.resolve():
        raise BuildError(f"The Python in {target} does not work: {found.stderr or found.stdout}")
