"""Room on the disk for weights: how much there is, and what to say if it does not suffice."""

import shutil
from pathlib import Path

from potluck.errors import DiskFullError, format_bytes


def free_bytes(folder: Path) -> int:
    """The bytes that the disk has left for this user."""
    return shutil.disk_usage(folder).free


def too_little(needed: int, available: int, quota: int | None) -> DiskFullError:
    """The error of weights for which no room can be made.

    Args:
        needed: bytes that they take.
        available: bytes that the store may take, with what it may remove.
        quota: bytes that it may take in all; None: only the disk is the limit.
    """
    available = max(0, available)
    limit = "" if quota is None else f" of the {format_bytes(quota)} it may use"
    return DiskFullError(
        f"This computer's share of the model takes {format_bytes(needed)} on its disk, and"
        f" Potluck has {format_bytes(available)} left{limit}. Free space on the disk, or lend"
        " less memory so that it gets fewer layers.",
        needed=needed,
        available=available,
    )
