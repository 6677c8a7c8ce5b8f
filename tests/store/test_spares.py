"""Spare copies in a store."""

from pathlib import Path

from chunk_stores import digest_of, fill, make_store

from potluck.store.chunks import ChunkStore
from potluck.store.spares import lacking

OTHERS, SPARE, WANTED = b"o" * 100, b"s" * 100, b"w" * 100


def lay(store: ChunkStore, data: bytes) -> None:
    store.set_aside(fill(store, data))


def test_spare_copies_are_evicted_before_what_was_used_long_ago(tmp_path: Path) -> None:
    with make_store(tmp_path, quota=300) as store:
        (old,) = fill(store, OTHERS)
        lay(store, SPARE)
        store.free_for(150)
        assert store.has(old)
        assert not store.has(digest_of(SPARE))


def test_a_store_that_is_opened_again_knows_its_spare_copies(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        lay(store, SPARE)
    with make_store(tmp_path) as store:
        assert store.inventory.unused() == [digest_of(SPARE)]


def test_a_spare_copy_that_a_plan_needs_is_one_no_more(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        lay(store, SPARE)
        assert store.missing([(digest_of(SPARE), len(SPARE))]) == []
        assert store.inventory.unused() == []


def test_what_a_plan_uses_does_not_become_a_spare_copy(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        digests = fill(store, SPARE)
        store.inventory.pin(digests)
        store.set_aside(digests)
        store.inventory.unpin(digests)
        assert store.inventory.unused() == []


def test_spare_copies_take_half_of_the_room_and_evict_nothing_else(tmp_path: Path) -> None:
    with make_store(tmp_path, quota=300) as store:
        (old,) = fill(store, OTHERS)
        wanted = {digest_of(data): 100 for data in (SPARE, WANTED)}
        assert [tensor.digest for tensor in lacking(store, wanted)] == [digest_of(SPARE)]
        assert store.has(old)


def test_spare_copies_of_before_make_room_for_those_of_now(tmp_path: Path) -> None:
    with make_store(tmp_path, quota=200) as store:
        lay(store, SPARE)
        wanted = {digest_of(WANTED): 100}
        assert [tensor.digest for tensor in lacking(store, wanted)] == [digest_of(WANTED)]
        assert not store.has(digest_of(SPARE))


def test_a_part_that_is_here_is_gone_on_with(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.write(digest_of(WANTED), 0, 100, WANTED[:40])
        (missing,) = lacking(store, {digest_of(WANTED): 100})
        assert missing.offset == 40
