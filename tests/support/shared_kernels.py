"""Compiled kernels that all processes of a run share: to compile them takes much of the tests' time.

They stay in pytest's cache folder, so that the next run begins with those of the same code.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from potluck.settings import Folders

_VARIABLE = "POTLUCK_TEST_KERNELS"


def set_folder(folder: Path) -> None:
    """Say where the kernels of this run are, to this process and those that it starts."""
    os.environ.setdefault(_VARIABLE, str(folder))


def name() -> str | None:
    """The folder of this run's kernels; None: outside of pytest."""
    return os.environ.get(_VARIABLE)


@cache
def keep() -> None:
    """Have this process keep its kernels there."""
    from potluck.engine.kernels import keep_compiled  # torch, which few processes need

    if (folder := name()) is not None:
        keep_compiled(Path(folder))


def share_with(home: Path, *, is_earlier: bool = False) -> None:
    """Have a node with this home keep its kernels there. Where a link needs rights, it has its own.

    `is_earlier`: it runs the release before, which has a folder of its own: a program deletes the kernels of others.
    """
    kept = Folders.of(home).state / "kernels"
    if (shared := name()) is not None and not kept.exists():
        folder = Path(f"{shared}-earlier") if is_earlier else Path(shared)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # a link to nothing is of no use
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            kept.symlink_to(folder, target_is_directory=True)
