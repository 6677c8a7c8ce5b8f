"""Recognise that a device ran out of memory, and give memory back.

torch raises `OutOfMemoryError` on CUDA, and elsewhere a plain `RuntimeError` that only its text tells from
other errors.
"""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from potluck.errors import OutOfMemoryError
from potluck.heap import trim

logger = logging.getLogger(__name__)

_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "alloc_failed",  # of the memory that CUDA's libraries compute in
    "invalid buffer size",  # a tensor is larger than the largest that Metal has
)


@contextmanager
def out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Raise Potluck's `OutOfMemoryError` in place of the device's, and release what was allocated inside.

    Args:
        what: the work that failed; the message says it after "has no memory left to".
        device: the device that computed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # the frames hold what was allocated
        release(device)
        raise OutOfMemoryError(
            f"This computer's {device.type} has no memory left to {what}. Close other programs,"
            " shorten the conversation, or give this computer fewer layers."
        ) from error


def release(device: torch.device) -> None:
    """Give the system back the free memory that torch, or the C library, keeps for later."""
    match device.type:
        case "cuda":
            try:
                torch.cuda.empty_cache()
            except RuntimeError as error:
                # Nothing depends on it, and it must not hide the error that led here.
                logger.warning("a GPU's memory cannot be given back: %s", error)
        case "mps":
            torch.mps.empty_cache()
        case _:
            trim()


def release_prompt(device: torch.device) -> None:
    """Give back the scratch memory of a prompt: tens of megabytes in a few milliseconds.

    On a GPU torch keeps it: giving it back waits for all work of the GPU, and the next prompt needs it again.
    """
    if device.type == "cpu":
        trim()


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)
