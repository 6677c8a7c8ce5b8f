"""Room: what is evicted, what stays, and what a full disk refuses."""

import shutil

import pytest
from chunk_stores import DATA, DIGEST, SIZE, digest_of, files, fill, made, make_store

from potluck.errors import DiskFullError
from potluck.store.chunks import ChunkStore


def test_least_recently_used_tensors_make_room(root):
    with make_store(root, quota=1000) as store:
        first, second, third = fill(store, b"a" * 400, b"b" * 400, b"c" * 100)
        assert store.missing([(first, 400)]) == []  # used now

        store.free_for(300)

        assert [store.has(one) for one in (first, second, third)] == [True, False, True]
        assert store.nbytes == 500


def test_order_of_use_outlives_the_process(root):
    with make_store(root, quota=1000) as store:
        first, second, third = fill(store, b"a" * 400, b"b" * 400, b"c" * 100)
        store.missing([(first, 400)])

    with make_store(root, quota=1000) as store:
        store.free_for(300)

        assert [store.has(one) for one in (first, second, third)] == [True, False, True]


def test_pinned_tensors_stay_until_they_are_unpinned_as_often(root):
    with make_store(root, quota=1000) as store:
        first, second = fill(store, b"a" * 500, b"b" * 400)
        store.inventory.pin([first])
        store.inventory.pin([first, first])
        store.free_for(400)
        assert [store.has(one) for one in (first, second)] == [True, False]

        store.inventory.unpin([first])
        with pytest.raises(DiskFullError):
            store.free_for(600)
        store.inventory.unpin([first])
        store.free_for(600)

        assert not store.has(first)


def test_parts_count_and_are_evicted_too(root):
    with make_store(root, quota=1000) as store:
        store.write(DIGEST, 0, SIZE, DATA[:800])
        assert store.nbytes == 800

        store.free_for(900)

        assert (store.offset(DIGEST), store.nbytes) == (0, 0)


def test_too_much_is_refused_with_the_numbers_and_nothing_is_removed(root):
    with make_store(root, quota=1000) as store:
        (first, second) = fill(store, b"a" * 300, b"b" * 300)
        store.inventory.pin([first])

        with pytest.raises(DiskFullError, match=r"takes 701 B.*has 700 B left of the 1 kB") as full:
            store.free_for(701)

        assert full.value.data == {"needed": 701, "available": 700}
        assert [store.has(one) for one in (first, second)] == [True, True]
        store.free_for(700)


def test_disk_without_room_is_refused_before_the_first_byte(root):
    with make_store(root, disk_free=lambda _: 5000, reserve=1000) as store:
        store.free_for(4000)
        with pytest.raises(DiskFullError, match=r"takes 4 kB.*has 4 kB left\. Free space"):
            store.free_for(4001)


def test_removed_tensors_give_room_on_a_full_disk(root):
    with make_store(root) as store:
        (first,) = fill(store, b"a" * 500)
        store.disk_free = lambda _: 0

        store.free_for(400)

        assert not store.has(first)


def test_real_disk_is_asked_by_default(root):
    with ChunkStore(root) as store, pytest.raises(DiskFullError):
        store.free_for(1 << 60)


def test_strangers_files_are_neither_counted_nor_removed(root):
    (root / "ab").mkdir(parents=True)
    for name in ("notes.txt", "ab/notes.txt", f"ab/{DIGEST}"):
        (root / name).write_text("mine")

    with make_store(root, quota=10) as store:
        assert store.nbytes == 0
        store.free_for(10)

    assert len(files(root)) == 3


def test_an_adopted_tensor_is_the_last_to_be_evicted(root):
    with make_store(root, quota=3 * SIZE) as store:
        (old,) = fill(store, DATA[::-1])
        store.adopt(made(store, DATA), DIGEST)
        store.free_for(2 * SIZE)

        assert not store.has(old)
        assert store.has(DIGEST)


def test_what_is_used_outlives_what_is_not(root):
    with make_store(root, quota=2 * SIZE) as store:
        first, second = fill(store, DATA, DATA[::-1])
        store.use([first, digest_of(b"not here")])
        store.free_for(SIZE)

        assert store.has(first)
        assert not store.has(second)


def test_room_that_was_taken_since_it_was_made_is_not_written_to(root):
    """Two masters may have been told of the same room: neither overfills the disk or the quota."""
    for limit in ({"quota": SIZE}, {"disk_free": lambda _: SIZE + 50, "reserve": 100}):
        with make_store(root, **limit) as store:
            store.free_for(0)
            store.write(DIGEST, 0, SIZE, DATA[:-1])
            first = store.nbytes
            with pytest.raises(DiskFullError, match="it was taken since"):
                store.write(digest_of(DATA * 2), 0, 2 * SIZE, DATA + b"more")
            assert store.nbytes == first
            store.discard(DIGEST)


def test_a_chunk_that_is_sent_again_takes_no_room(root):
    with make_store(root, quota=SIZE) as store:
        store.write(DIGEST, 0, SIZE, DATA[:-1])

        assert store.write(DIGEST, 0, SIZE, DATA)
        assert store.nbytes == SIZE


def test_the_bytes_of_a_store_are_counted_anew_when_it_is_opened_or_made_again(root):
    with make_store(root) as store:
        fill(store, DATA, DATA[::-1])
        store.write(digest_of(DATA * 2), 0, 2 * SIZE, DATA)
        store.discard(DIGEST)
    with make_store(root) as store:
        assert store.nbytes == 2 * SIZE == sum(store.inventory.sizes().values())
        shutil.rmtree(root)
        store.missing([])
        assert store.nbytes == 0
