import hashlib

import pytest

from potluck.errors import IntegrityError
from potluck.ids import Digest
from potluck.store.part import Part

DATA = bytes(range(256)) * 5000  # more than one buffer of the hash
SIZE = len(DATA)
DIGEST = Digest(hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def path(tmp_path):
    return tmp_path / f"{DIGEST}.part"


def test_part_of_an_earlier_run_is_hashed_from_the_file(path):
    assert not Part(path, DIGEST).append(0, SIZE, DATA[:-10])

    part = Part(path, DIGEST)

    assert part.append(SIZE - 10, SIZE, DATA[-10:])
    assert path.read_bytes() == DATA


def test_bytes_that_a_failed_write_left_behind_are_counted(path):
    part = Part(path, DIGEST)
    part.append(0, SIZE, DATA[:100])
    with path.open("ab") as file:
        file.write(DATA[100:150])

    assert part.append(100, SIZE, DATA[100:])
    assert part.is_whole


def test_altered_part_is_never_whole(path):
    part = Part(path, DIGEST)

    with pytest.raises(IntegrityError, match="arrived altered"):
        part.append(0, SIZE, bytes(SIZE))
    assert not part.is_whole


def test_gap_is_refused_with_both_numbers(path):
    with pytest.raises(IntegrityError, match=f"begins at byte 7; 0 of {SIZE}"):
        Part(path, DIGEST).append(7, SIZE, DATA[7:])


def test_finished_part_has_the_tensors_name(path, tmp_path):
    part = Part(path, DIGEST)
    part.append(0, SIZE, DATA)

    part.finish(tmp_path / DIGEST)

    assert (tmp_path / DIGEST).read_bytes() == DATA
    assert not path.exists()


def test_part_that_was_deleted_is_not_finished(path, tmp_path):
    part = Part(path, DIGEST)
    part.append(0, SIZE, DATA)
    path.unlink()

    with pytest.raises(IntegrityError, match="deleted while it arrived"):
        part.finish(tmp_path / DIGEST)
