"""Give memory back that a program has freed and its C library keeps, and look for none while much is made."""

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager


def trim() -> None:
    """Make glibc return free memory between blocks in use: some milliseconds for 50 MB. Others do so by themselves."""
    if sys.platform == "linux":
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if malloc_trim is not None:
            malloc_trim(0)


@contextmanager
def without_collection() -> Generator[None]:
    """Make many objects that are all needed: looking for garbage among them would take as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
