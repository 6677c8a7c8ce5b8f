import errno
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chunk_stores import DATA, DIGEST, SIZE, digest_of, files, fill, made, make_store
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import DiskFullError, IntegrityError, StoreError
from potluck.store import part
from potluck.store.chunks import Missing

# --- writing


def test_tensor_written_in_chunks_has_its_name_only_when_it_is_whole(store, root):
    assert not store.write(DIGEST, 0, SIZE, DATA[:4000])
    assert (store.has(DIGEST), store.offset(DIGEST)) == (False, 4000)
    assert files(root) == [DIGEST + ".part"]

    assert store.write(DIGEST, 4000, SIZE, DATA[4000:])

    assert store.has(DIGEST, SIZE)
    assert store.path(DIGEST) == root / DIGEST[:2] / DIGEST
    assert store.path(DIGEST).read_bytes() == DATA
    assert files(root) == [DIGEST]
    assert store.offset(DIGEST) == 0


def test_whole_tensor_is_not_there_before_it_is_committed(store):
    assert store.append(DIGEST, 0, SIZE, DATA)
    assert not store.has(DIGEST)

    store.commit([DIGEST])
    store.commit([DIGEST])

    assert store.has(DIGEST, SIZE)


STEP = st.tuples(st.integers(0, 3000), st.integers(0, 5000), st.booleans())


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, max_size=12))
def test_any_chunking_with_repeats_overlaps_and_restarts_ends_in_the_same_tensor(steps):
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        for back, forward, is_restarted in [*steps, (0, SIZE, False)]:
            have = SIZE if store.has(DIGEST) else store.offset(DIGEST)
            start, stop = max(0, have - back), min(SIZE, have + forward)

            whole = store.write(DIGEST, start, SIZE, memoryview(DATA)[start:stop])

            assert whole == (stop == SIZE)
            assert whole or store.offset(DIGEST) == stop
            if is_restarted:
                store.close()
                store = make_store(Path(folder))
        assert store.path(DIGEST).read_bytes() == DATA
        assert store.nbytes == SIZE
        store.close()


def test_chunk_after_a_gap_is_refused_and_the_tensor_begins_again(store):
    store.write(DIGEST, 0, SIZE, DATA[:100])

    with pytest.raises(IntegrityError, match="begins at byte 101; 100 of"):
        store.write(DIGEST, 101, SIZE, DATA[101:])

    assert store.offset(DIGEST) == 0


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE + 1), (SIZE, 1), (-1, 5), (1 << 40, 1)])
def test_chunk_beyond_the_tensor_is_refused(store, root, offset, length):
    with pytest.raises(StoreError, match="beyond"):
        store.write(DIGEST, offset, SIZE, bytes(length))

    assert files(root) == []


def test_part_that_is_longer_than_the_tensor_is_refused(store):
    store.write(DIGEST, 0, SIZE, DATA[:100])

    with pytest.raises(StoreError, match="100 of 50 are here"):
        store.write(DIGEST, 0, 50, DATA[:50])


def test_repeated_chunk_of_a_stored_tensor_changes_nothing(store):
    fill(store, DATA)
    before = store.path(DIGEST).stat()

    assert store.write(DIGEST, 0, SIZE, b"other")

    assert store.path(DIGEST).stat().st_mtime_ns == before.st_mtime_ns
    assert store.path(DIGEST).read_bytes() == DATA


def test_what_is_not_whole_is_not_committed(store):
    store.append(DIGEST, 0, SIZE, DATA[:100])

    assert set(store.commit([DIGEST, digest_of(b"never seen")])) == {
        DIGEST,
        digest_of(b"never seen"),
    }
    assert not store.has(DIGEST)
    assert store.offset(DIGEST) == 100


def test_altered_bytes_are_refused_and_removed(store, root):
    altered = bytearray(DATA)
    altered[77] ^= 1
    store.write(DIGEST, 0, SIZE, altered[:5000])

    with pytest.raises(IntegrityError) as caught:
        store.write(DIGEST, 5000, SIZE, altered[5000:])

    assert caught.value.data["digest"] == DIGEST
    assert (files(root), store.nbytes) == ([], 0)
    assert store.write(DIGEST, 0, SIZE, DATA)


def test_tensor_without_bytes_is_stored(store):
    empty = digest_of(b"")

    assert store.write(empty, 0, 0, b"")
    assert store.missing([(empty, 0)]) == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..", "", DIGEST.upper(), DIGEST + "/", "é" * 64]
)
def test_name_that_is_no_digest_is_never_a_path(store, root, name):
    for use in (
        lambda: store.has(name),
        lambda: store.offset(name),
        lambda: store.path(name),
        lambda: store.write(name, 0, 1, b"x"),
        lambda: store.discard(name),
        lambda: store.missing([(name, 1)]),
    ):
        with pytest.raises(StoreError, match="not a digest"):
            use()
    assert files(root) == []


def test_two_writers_of_one_tensor_do_not_harm_each_other(store):
    size = 1000

    def write_all(_: int) -> bool:
        whole = False
        for start in range(0, SIZE, size):
            whole = store.write(DIGEST, start, SIZE, DATA[start : start + size])
        return whole

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write_all, range(8)))

    assert store.path(DIGEST).read_bytes() == DATA
    assert store.nbytes == SIZE


# --- what disks and crashes do


def test_crash_between_the_last_byte_and_the_name_is_finished_at_the_next_start(root):
    with make_store(root) as store:
        store.append(DIGEST, 0, SIZE, DATA)
    assert files(root) == [DIGEST + ".part"]

    with make_store(root) as store:
        assert store.missing([(DIGEST, SIZE)]) == []

        assert store.path(DIGEST).read_bytes() == DATA


@pytest.mark.parametrize("damage", [bytes(SIZE), DATA + b"more"])
def test_complete_part_that_is_damaged_is_fetched_from_the_beginning(root, damage):
    with make_store(root) as store:
        store.append(DIGEST, 0, SIZE, DATA)
    (root / DIGEST[:2] / (DIGEST + ".part")).write_bytes(damage)

    with make_store(root) as store:
        assert store.missing([(DIGEST, SIZE)]) == [Missing(digest=DIGEST, offset=0, nbytes=SIZE)]

    assert files(root) == []


def test_part_whose_beginning_was_lost_in_a_crash_is_never_a_tensor(root):
    with make_store(root) as store:
        store.write(DIGEST, 0, SIZE, DATA[:5000])
    (root / DIGEST[:2] / (DIGEST + ".part")).write_bytes(bytes(5000))  # sized, never flushed

    with make_store(root) as store:
        (wanted,) = store.missing([(DIGEST, SIZE)])
        assert wanted.offset == 5000
        with pytest.raises(IntegrityError):
            store.write(DIGEST, 5000, SIZE, DATA[5000:])
        assert store.missing([(DIGEST, SIZE)])[0].offset == 0


def test_part_that_someone_removed_is_begun_again(store, root):
    store.write(DIGEST, 0, SIZE, DATA[:5000])
    (root / DIGEST[:2] / (DIGEST + ".part")).unlink()

    with pytest.raises(StoreError, match="0 of"):
        store.write(DIGEST, 5000, SIZE, DATA[5000:])
    assert store.write(DIGEST, 0, SIZE, DATA)


@pytest.mark.parametrize("damage", [DATA[:-1], b"", DATA + b"x"])
def test_tensor_of_the_wrong_size_is_not_served_and_is_replaced(store, damage):
    fill(store, DATA)
    store.path(DIGEST).write_bytes(damage)

    assert not store.has(DIGEST, SIZE)
    assert [one.offset for one in store.missing([(DIGEST, SIZE)])] == [0]
    assert store.write(DIGEST, 0, SIZE, DATA)
    assert store.path(DIGEST).read_bytes() == DATA


def test_full_disk_keeps_the_part_and_goes_on_later(store, monkeypatch):
    store.write(DIGEST, 0, SIZE, DATA[:3000])

    class FullDisk:
        """Takes 700 more bytes."""

        def __init__(self, path: Path, *_: object, **__: object) -> None:
            self.file = Path.open(path, "ab", buffering=0)
            self.room = 700

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def tell(self) -> int:
            return self.file.tell()

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room = 0
            return self.file.write(data[:700])

    with monkeypatch.context() as patch:
        patch.setattr(part, "open_to_append", FullDisk)
        with pytest.raises(DiskFullError, match="became full"):
            store.write(DIGEST, 3000, SIZE, DATA[3000:])

    assert store.offset(DIGEST) == 3700
    assert store.write(DIGEST, 3700, SIZE, DATA[3700:])


def test_disk_that_fails_is_an_error_with_its_reason(store, root):
    (root / DIGEST[:2]).mkdir()
    (root / DIGEST[:2] / (DIGEST + ".part")).mkdir()  # cannot be opened for writing

    with pytest.raises(StoreError, match="Weights cannot be written"):
        store.write(DIGEST, 0, SIZE, DATA)


def test_folder_is_one_stores_at_a_time(root):
    with make_store(root), pytest.raises(StoreError, match="Another Potluck"):
        make_store(root)

    make_store(root).close()


# --- what another process has made


def test_a_file_of_the_workshop_becomes_a_tensor(store, root):
    store.adopt(made(store, DATA), DIGEST)

    assert files(root) == [DIGEST]
    assert store.has(DIGEST, SIZE)
    assert store.nbytes == SIZE
    assert store.path(DIGEST).read_bytes() == DATA


def test_an_adopted_tensor_replaces_a_damaged_one_and_is_counted_once(store):
    (digest,) = fill(store, DATA)
    store.path(digest).write_bytes(DATA[:5])

    store.adopt(made(store, DATA), digest)

    assert store.path(digest).read_bytes() == DATA
    assert store.nbytes == SIZE


def test_what_cannot_be_adopted_is_removed(store):
    file = made(store, DATA)
    store.path(DIGEST).mkdir(parents=True)  # no file takes the place of a folder

    with pytest.raises(StoreError, match="cannot be stored"):
        store.adopt(file, DIGEST)
    assert not file.exists()


def test_an_unfinished_workshop_is_emptied(root):
    with make_store(root) as store:
        made(store, DATA)

    with make_store(root) as store:
        assert files(root) == []
        assert store.nbytes == 0


# --- a folder that is deleted or altered while the store is open


def test_deleted_folder_is_made_again_and_everything_is_missing(store, root):
    store.write(DIGEST, 0, SIZE, DATA)
    shutil.rmtree(root)

    assert store.missing([(DIGEST, SIZE)]) == [Missing(digest=DIGEST, offset=0, nbytes=SIZE)]
    assert store.nbytes == 0
    store.free_for(SIZE)

    assert store.write(DIGEST, 0, SIZE, DATA)
    assert store.path(DIGEST).read_bytes() == DATA
    with pytest.raises(StoreError, match="Another Potluck"):
        make_store(root)


def test_deleted_folder_that_another_process_has_taken_is_an_error(store, root):
    shutil.rmtree(root)

    with make_store(root), pytest.raises(StoreError, match="Another Potluck"):
        store.free_for(1)


def test_tensor_whose_folder_is_deleted_while_it_arrives_begins_again(store, root):
    store.write(DIGEST, 0, SIZE, DATA[:100])
    shutil.rmtree(root)

    with pytest.raises(IntegrityError, match="deleted or altered"):
        store.append(DIGEST, 100, SIZE, DATA[100:])

    assert store.write(DIGEST, 0, SIZE, DATA)


def test_tensor_that_is_deleted_before_it_is_named_is_said_to_be_lost(store, root):
    other = b"other"
    store.append(DIGEST, 0, SIZE, DATA)
    store.append(digest_of(other), 0, len(other), other)
    (root / DIGEST[:2] / f"{DIGEST}.part").unlink()

    assert set(store.commit([DIGEST, digest_of(other)])) == {DIGEST}
    assert store.has(digest_of(other))
    assert store.write(DIGEST, 0, SIZE, DATA)


def test_verifying_removes_what_is_damaged_and_nothing_else(store):
    good, altered, cut = fill(store, b"good", b"altered", b"cut off")
    store.path(altered).write_bytes(b"Altered")
    store.path(cut).write_bytes(b"cut")

    assert store.verify([good, altered, digest_of(b"absent"), cut]) == [altered, cut]

    assert store.has(good)
    assert not store.has(altered)
    assert not store.has(cut)
    assert store.nbytes == len(b"good")
