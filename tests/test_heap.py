"""Memory that was freed is given back to the system."""

import ctypes
import gc
import sys
from collections.abc import Iterator

import psutil
import pytest

from potluck.heap import trim, without_collection

BLOCK, COUNT = 64 << 10, 1024  # smaller than what the C library asks of the system by itself


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give memory back by themselves")
def test_memory_below_a_block_in_use_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("another C library than glibc")
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [ctypes.c_void_p(libc.malloc(BLOCK)) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    last = libc.malloc(BLOCK)  # memory below it is not given back without being asked for
    for block in blocks:
        libc.free(block)
    before = psutil.Process().memory_info().rss

    trim()

    assert psutil.Process().memory_info().rss < before - BLOCK * COUNT // 2
    libc.free(last)


@pytest.fixture
def collecting() -> Iterator[None]:
    """Python looks for garbage by itself, which the tests of the window have switched off."""
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


@pytest.mark.usefixtures("collecting")
def test_nothing_is_collected_while_much_is_made_and_again_afterwards() -> None:
    with without_collection(), without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()

    with pytest.raises(KeyError), without_collection():
        raise KeyError
    assert gc.isenabled()
