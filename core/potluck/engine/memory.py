"""Tell a device that ran out of memory from a mistake of ours, and give memory back.

torch raises `OutOfMemoryError` on CUDA and a plain `RuntimeError` elsewhere, which only its text gives
away.
"""

import ctypes
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from potluck.errors import OutOfMemoryError

logger = logging.getLogger(__name__)

_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "alloc_failed",  # what CUDA's libraries compute in
    "invalid buffer size",  # more than Metal gives in one piece
)


@contextmanager
def out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Raise our own `OutOfMemoryError` for the device's; what was allocated inside is released."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold what was allocated
        release(device)
        raise OutOfMemoryError(
            f"This computer's {device.type} has no memory left to {what}. Close other programs,"
            " shorten the conversation, or give this computer fewer layers."
        ) from error


def release(device: torch.device) -> None:
    """Give back what torch, or the C library, keeps for later."""
    match device.type:
        case "cuda":
            try:
                torch.cuda.empty_cache()
            except RuntimeError as error:
                # Nothing depends on it, and the error that led here is the one to be heard.
                logger.warning("a GPU's memory cannot be given back: %s", error)
        case "mps":
            torch.mps.empty_cache()
        case _:
            _trim()


def release_prompt(device: torch.device) -> None:
    """Give back what a prompt was computed in, in a few milliseconds: tens of megabytes.

    A GPU's is left to torch: all of its work would be waited for, and the next prompt would ask again.
    """
    if device.type == "cpu":
        _trim()


def _trim() -> None:
    """Have glibc return what was freed between what is in use, which it keeps for the next time."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)
