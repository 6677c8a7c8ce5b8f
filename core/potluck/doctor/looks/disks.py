"""The folders of Potluck: what is free on their disks, whether they can be written, who reads the keys."""

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from potluck.doctor.facts import Disk, Secrets
from potluck.reasons import reason

Holds: TypeAlias = Literal["settings", "identity", "weights", "logs"]


def look_at_disks(folders: Mapping[Holds, Path]) -> tuple[Disk, ...]:
    """Each folder. One that does not exist yet is judged by the next one above it that does."""
    return tuple(_disk(holds, folder) for holds, folder in folders.items())


def _disk(holds: Holds, folder: Path) -> Disk:
    there = next((f for f in (folder, *folder.parents) if f.is_dir()), folder)
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        free = shutil.disk_usage(there).free if there.is_dir() else 0
        return Disk(folder=str(folder), holds=holds, free=free, error=reason(error))
    return Disk(folder=str(folder), holds=holds, free=free)


def look_at_secrets(folder: Path) -> Secrets | None:
    """Who may read a folder of keys; None: there is none yet, or the system has no such rights."""
    if os.name != "posix" or not folder.is_dir():
        return None
    others = stat.S_IRWXG | stat.S_IRWXO
    # Whoever may not enter the folder reaches no file in it.
    open_keys = [k for k in folder.glob("*.key.pem") if k.stat().st_mode & others]
    is_private = not folder.stat().st_mode & others or not open_keys
    return Secrets(folder=str(folder), is_private=is_private)
