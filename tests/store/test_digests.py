import os

import pytest
from model_folders import LONG_AGO, make_folder, settle, tensors_of

from potluck.errors import BrokenModelError
from potluck.store.registry import open_model

FILE = "model.safetensors"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


class Meter:
    """Progress as it is told: `calls` of (done, total)."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))

    @property
    def hashed(self) -> int:
        """Bytes that were not known before."""
        return self.calls[-1][0] - self.calls[0][0]


def opened(folder, cache, **options):
    meter = Meter()
    return open_model(folder, cache_dir=cache, progress=meter, **options), meter


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_grows_to_the_models_size(folder, cache, threads):
    model, meter = opened(folder, cache, threads=threads)

    done = [call[0] for call in meter.calls]
    assert done == sorted(done)
    assert {call[1] for call in meter.calls} == {model.manifest.nbytes}
    assert (done[0], done[-1]) == (0, model.manifest.nbytes)


def test_second_opening_hashes_nothing(folder, cache):
    first, meter = opened(folder, cache)
    assert meter.hashed == first.manifest.nbytes

    second, again = opened(folder, cache)

    assert second.manifest == first.manifest
    assert again.hashed == 0


def test_shard_that_changed_is_hashed_again_and_no_other(tmp_path, cache):
    folder = make_folder(tmp_path / "m", shards=2)
    opened(folder, cache)
    shard = folder / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    model, meter = opened(folder, cache)

    in_shard = sum(s.nbytes for s in model.sources.values() if s.path == shard.resolve())
    assert meter.hashed == in_shard


def test_file_of_the_same_size_and_set_back_time_is_hashed_again(folder, cache):
    before, _ = opened(folder, cache)
    make_folder(folder, tensors=tensors_of(seed=1))
    assert (folder / FILE).stat().st_mtime == LONG_AGO

    after, _ = opened(folder, cache)

    if os.name != "nt":  # Windows has no time of change beside the one that was set back
        assert after.manifest.model_id != before.manifest.model_id


def test_file_that_may_still_be_written_is_not_remembered(folder, cache):
    (folder / FILE).touch()
    opened(folder, cache)

    model, meter = opened(folder, cache)

    assert meter.hashed == model.manifest.nbytes


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff", b"[]", b'{"path": 3}'],
)
def test_damaged_memory_is_made_again(folder, cache, damage):
    first, _ = opened(folder, cache)
    (memory,) = (cache / "digests").iterdir()
    memory.write_bytes(damage)

    second, meter = opened(folder, cache)

    assert meter.hashed == second.manifest.nbytes
    assert second.manifest == first.manifest
    assert opened(folder, cache)[1].hashed == 0


def test_memory_with_something_else_than_digests_is_not_believed(folder, cache):
    first, _ = opened(folder, cache)
    (memory,) = (cache / "digests").iterdir()
    digest = first.manifest.tensors[0].digest
    memory.write_text(memory.read_text().replace(digest, "../" + digest[3:]))

    second, meter = opened(folder, cache)

    assert second.manifest == first.manifest
    assert meter.hashed > 0


def test_memory_that_cannot_be_written_costs_only_time(folder, cache):
    cache.write_text("a file where the folder should be")

    model, _ = opened(folder, cache)

    assert len(model.sources) == len(tensors_of())


def test_file_that_changes_while_it_is_read_is_noticed(folder, cache):
    def touch(done: int, _total: int) -> None:
        if done:
            settle(folder / FILE, LONG_AGO + 1)

    with pytest.raises(BrokenModelError, match=f"{FILE} changed while"):
        open_model(folder, cache_dir=cache, progress=touch)

    assert not (cache / "digests").exists()


def test_file_that_shrinks_while_it_is_read_is_noticed(folder, cache):
    def shorten(done: int, _total: int) -> None:
        if not done:
            os.truncate(folder / FILE, 2000)

    with pytest.raises(BrokenModelError, match=f"{FILE} changed while"):
        open_model(folder, cache_dir=cache, progress=shorten, threads=1)


def test_progress_that_raises_stops_the_hashing(folder, cache):
    class CancelledError(Exception):
        pass

    def cancel(done: int, _total: int) -> None:
        if done:
            raise CancelledError

    with pytest.raises(CancelledError):
        open_model(folder, cache_dir=cache, progress=cancel, threads=1)

    assert not (cache / "digests").exists()
