import mmap
from pathlib import Path

import pytest

from potluck.engine.pages import HUGE_PAGE, Scratch, Slab, map_pages


@pytest.mark.parametrize("nbytes", [0, 1, 4097, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_as_many_bytes_as_asked_for_and_all_can_be_written(nbytes: int) -> None:
    memory = map_pages(nbytes)

    memory.fill_(0xA5)

    assert memory.shape == (nbytes,)
    assert bool((memory == 0xA5).all())


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
def test_what_fills_a_huge_page_begins_at_one() -> None:
    assert map_pages(HUGE_PAGE).data_ptr() % HUGE_PAGE == 0
    assert map_pages(3 * HUGE_PAGE + 5).data_ptr() % HUGE_PAGE == 0


def test_what_fills_no_huge_page_takes_none() -> None:
    assert map_pages(HUGE_PAGE - 1).untyped_storage().nbytes() < HUGE_PAGE


def test_a_system_without_huge_pages_has_memory_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)

    assert map_pages(HUGE_PAGE + 1).shape == (HUGE_PAGE + 1,)


def test_more_than_there_can_be_is_no_memory() -> None:
    with pytest.raises(MemoryError):
        map_pages(1 << 60)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_the_system_has_it_back_when_no_tensor_holds_it() -> None:
    before = mapped_bytes()
    memory = map_pages(64 * HUGE_PAGE)
    view = memory[5:]
    del memory
    assert mapped_bytes() >= before + 64 * HUGE_PAGE

    del view

    assert mapped_bytes() < before + 64 * HUGE_PAGE


def test_scratch_is_the_same_memory_again() -> None:
    scratch = Scratch()
    large = scratch.floats(64, 100)
    large.fill_(1.0)

    small = scratch.floats(3, 7)

    assert small.shape == (3, 7)
    assert small.data_ptr() == large.data_ptr()
    assert bool((small == 1.0).all())


def test_scratch_grows_to_what_is_asked_for() -> None:
    scratch = Scratch()
    scratch.floats(1, 1)

    grown = scratch.floats(200, 300)
    grown.fill_(2.0)

    assert scratch.floats(200, 300).data_ptr() == grown.data_ptr()
    assert bool((grown == 2.0).all())


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
def test_what_a_slab_gave_goes_back_with_its_tensor_and_its_neighbours_stay() -> None:
    slab = Slab(64 * HUGE_PAGE)
    parts = [slab.take(16 * HUGE_PAGE + 100, align=64) for _ in range(3)]
    assert all(part is not None and part.data_ptr() % 64 == 0 for part in parts)
    assert slab.take(32 * HUGE_PAGE, align=64) is None
    for number, part in enumerate(parts, 1):
        assert part is not None
        part.fill_(number)
    filled = resident_bytes()

    view = parts.pop(1)
    assert view is not None
    view = view[5:]
    assert resident_bytes() > filled - HUGE_PAGE  # a view still has it
    del view

    assert resident_bytes() < filled - 15 * HUGE_PAGE
    for number, part in zip((1, 3), parts, strict=True):
        assert part is not None
        assert bool((part == number).all())


def resident_bytes() -> int:
    """Of this process's memory what is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
