"""Memory asked of the system itself, for weights, caches and scratch: in huge pages, given back at once."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 1 << 21


def map_pages(nbytes: int) -> Tensor:
    """So many bytes, uint8, which the system has back as soon as no tensor holds them.

    Where it has them, in huge pages as far as these fill any: fewer to ask for, and to look up while a
    product or attention reads them. Memory is taken when it is written to.

    Raises:
        MemoryError: there are not as many.
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
    with suppress(OSError):  # a kernel may be built without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, in_huge)
    return mapped[start : start + nbytes]


class Scratch:
    """Memory that one computation after the other uses.

    From the C library each would get other pages, and a prompt would take twice what it needs.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def floats(self, rows: int, width: int) -> Tensor:
        """(rows, width), f32, to be written to; what was here before is lost."""
        nbytes = 4 * rows * width
        if nbytes > len(self._memory):
            self._memory = map_pages(nbytes)
        return self._memory[:nbytes].view(torch.float32).view(rows, width)
