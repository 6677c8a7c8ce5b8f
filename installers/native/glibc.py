"""The oldest glibc that a tree runs with: what its programs and libraries ask of the system's."""

from __future__ import annotations

import re
from pathlib import Path

from native.libraries import is_elf

_VERSION = re.compile(rb"GLIBC_(\d+)\.(\d+)\0")


def needed(tree: Path) -> str:
    """Return the newest version of glibc that a file in the tree asks for, such as `2.34`."""
    most = (2, 17)  # the oldest that any wheel is made for today
    for file in tree.rglob("*"):
        if is_elf(file):
            most = max([most, *asked(file.read_bytes())])
    return f"{most[0]}.{most[1]}"


def asked(data: bytes) -> list[tuple[int, int]]:
    """Return the versions that an ELF file names among its strings."""
    return [(int(major), int(minor)) for major, minor in _VERSION.findall(data)]
