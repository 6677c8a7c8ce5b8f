"""Memory mapped in huge pages, for weights, caches and scratch. The system gets it back at once."""

import mmap
import weakref
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 1 << 21


def has_huge_pages() -> bool:
    """Whether this system has huge pages that a process can ask for."""
    return hasattr(mmap, "MADV_HUGEPAGE")


def map_pages(nbytes: int) -> Tensor:
    """Map so many bytes, as uint8. The system gets them back as soon as no tensor holds them.

    If the system has huge pages, all bytes that fill whole ones are in huge pages: there are fewer
    pages to map, and fewer to look up while a product or attention reads them. The system takes a
    page from free memory when it is first written.

    Raises:
        MemoryError: the system has less memory.
    """
    if nbytes == 0 or not has_huge_pages():
        return torch.empty(nbytes, dtype=torch.uint8)
    memory, start = _map(nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + nbytes]


class Slab:
    """Pages that many tensors share. The system gets a tensor's pages back when that is freed.

    Use it only where `has_huge_pages`: elsewhere nothing is gained by sharing.
    """

    def __init__(self, nbytes: int) -> None:
        """Map so many bytes. They take memory when they are first written.

        Raises:
            MemoryError: the system has less memory.
        """
        self._memory, self._next = _map(nbytes)
        self._end = self._next + nbytes

    def take(self, nbytes: int, *, align: int) -> Tensor | None:
        """At least one byte, beginning at a multiple of `align`; None: there are too few left."""
        start = -(-self._next // align) * align
        end = start + nbytes
        if end > self._end:
            return None
        self._next = end
        view = memoryview(self._memory)[start:end]
        # The tensor, and every view of it, keeps this memoryview alive.
        weakref.finalize(view, _give_back, self._memory, start, end).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)


def _give_back(memory: mmap.mmap, start: int, end: int) -> None:
    """Return the whole pages between these offsets. Pages at the ends belong to a neighbour too."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def _map(nbytes: int) -> tuple[mmap.mmap, int]:
    """A mapping, and the offset where the bytes begin: at a huge page, if they fill any."""
    in_huge = nbytes // HUGE_PAGE * HUGE_PAGE
    to_align = HUGE_PAGE if in_huge else 0
    try:
        memory = mmap.mmap(-1, nbytes + to_align, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {nbytes} bytes") from error
    if not in_huge:
        return memory, 0
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    with suppress(OSError):  # a Linux kernel may be built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE, start, in_huge)
    return memory, start


class Scratch:
    """Memory that several computations use, one after the other.

    The C library would give each computation other pages, and a prompt would take twice the memory.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def floats(self, rows: int, width: int) -> Tensor:
        """Return uninitialised memory (rows, width), f32. The next call reuses the same memory."""
        nbytes = 4 * rows * width
        if nbytes > len(self._memory):
            self._memory = map_pages(nbytes)
        return self._memory[:nbytes].view(torch.float32).view(rows, width)
