"""PyTorch as a part that is installed after the program: found, fetched, unpacked, tried, switched to.

1. A lock of the release (`lock.py`, files in `assets/engine`) names every wheel of torch and what only it
   needs, with its SHA-256; `choice.py` picks those for this computer (`gpus.py` has the rule).
2. Wheels lie by their SHA-256 in `data/engine/wheels`. One that is missing comes from a computer of the home
   (`cluster/runtime/`), else from the Internet (`download.py`). Where it comes from is never trusted, its hash is.
3. They are unpacked (`wheel.py`) into `data/engine/<digest of the choice>`, which is complete or does not have
   its name; a process of its own imports torch and multiplies (`trial.py`).
4. `current.json` names the folder in use (`installed.py`), and the one before until the new one has worked.
5. A torch in the own environment (a checkout, pip) wins: then nothing is installed or used.

No module here imports torch, and this one imports nothing: `installers/` reads the rule before Potluck is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]


def find(data: Path | None = None) -> Path | None:
    """The folder that a process which computes needs in its PYTHONPATH.

    Args:
        data: Potluck's data folder; None: that of POTLUCK_HOME, else that of this user.

    Returns:
        None if torch can be imported already, or no engine is installed.
    """
    from potluck.runtime.installed import Installed, has_own_torch

    if has_own_torch():
        return None
    if data is not None:
        return Installed.below(data).folder()
    from potluck.settings import Folders

    own, usual = (Installed.below(folders.data) for folders in (Folders.of(), Folders.usual()))
    return own.folder() or usual.folder()
