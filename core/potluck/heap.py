"""Give memory back that a program has freed and its C library keeps."""

import ctypes
import sys


def trim() -> None:
    """Make glibc return free memory between blocks in use: some milliseconds for 50 MB. Others do so by themselves."""
    if sys.platform == "linux":
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if malloc_trim is not None:
            malloc_trim(0)
