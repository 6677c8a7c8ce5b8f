"""Memory mapped by the system itself, for weights, caches and scratch: in huge pages, given back at once."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 1 << 21


def map_pages(nbytes: int) -> Tensor:
    """Map so many bytes, uint8. The system has them back as soon as no tensor holds them.

    They are in huge pages where the system has these and as far as whole ones are filled: there are fewer
    to map, and fewer to look up while a product or attention reads them. The system takes a page from free
    memory when it is first written.

    Raises:
        MemoryError: there is not as much memory.
    """
    if nbytes == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(nbytes, dtype=torch.uint8)
    in_huge = nbytes // HUGE_PAGE * HUGE_PAGE
    to_align = HUGE_PAGE if in_huge else 0
    try:
        memory = mmap.mmap(-1, nbytes + to_align, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {nbytes} bytes") from error
    mapped = torch.frombuffer(memory, dtype=torch.uint8)
    if not in_huge:
        return mapped
    start = -mapped.data_ptr() % HUGE_PAGE
    with suppress(OSError):  # a Linux kernel may be built without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, in_huge)
    return mapped[start : start + nbytes]


class Scratch:
    """Memory that one computation uses after the other.

    The C library would give each computation other pages, and a prompt would take twice what it needs.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def floats(self, rows: int, width: int) -> Tensor:
        """Return memory (rows, width), f32, that holds anything. The last call's memory is used again."""
        nbytes = 4 * rows * width
        if nbytes > len(self._memory):
            self._memory = map_pages(nbytes)
        return self._memory[:nbytes].view(torch.float32).view(rows, width)
