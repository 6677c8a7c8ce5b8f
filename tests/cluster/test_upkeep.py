"""Checking and pruning the weights on this computer's disk."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from chunk_stores import fill, make_store
from fake_cluster import run
from model_folders import make_folder, tensors_of

from potluck.api.values.weights import Pruned, Verified
from potluck.cluster.upkeep import Upkeep
from potluck.errors import UsageError
from potluck.ids import Digest
from potluck.store.chunks import ChunkStore
from potluck.store.digests import Stamp
from potluck.store.quantised import Packed, remember
from potluck.store.registry import LocalModel, open_model


class Cellar:
    """A model on disk, a packed form of it, and a tensor of another computer's model."""

    def __init__(self, base: Path) -> None:
        self.folder = make_folder(base / "mine")
        self.digests, self.packed = base / "digests", base / "packed"
        self.model: LocalModel = open_model(self.folder, cache_dir=self.digests)
        self.store: ChunkStore = make_store(base / "tensors")
        self.mine, self.theirs = fill(self.store, b"packed", b"of another computer")
        packed = {"INT4 one": Packed(self.mine, len(b"packed"))}
        remember(self.packed, self.model.manifest.model_id, packed)
        self.known = [self.folder]
        self.sessions = base / "sessions"
        self.upkeep = Upkeep(
            store=self.store,
            packed=self.packed,
            digests=self.digests,
            sessions=self.sessions,
            models=lambda: self.known,
            find=self._find,
        )

    def _find(self, words: str) -> Path:
        if words != "mine":
            raise UsageError("There is no such model.")
        return self.folder

    async def verify(self, model: str | None = None) -> Verified:
        last = [progress async for progress in self.upkeep.verify(model)][-1]
        assert last.state == "ready"
        assert last.result is not None
        return last.result

    def damage(self, digest: Digest) -> None:
        path = self.store.path(digest)
        path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture
def cellar(tmp_path: Path) -> Iterator[Cellar]:
    cellar = Cellar(tmp_path)
    yield cellar
    cellar.store.close()


def test_intact_weights_stay(cellar: Cellar) -> None:
    verified = run(cellar.verify())

    (model,) = verified.models
    assert (model.name, model.damaged, model.problem) == ("mine", (), None)
    assert model.nbytes == cellar.model.manifest.nbytes
    assert verified.is_intact
    assert (verified.store.tensors, verified.store.dropped) == (2, ())
    assert verified.store.nbytes == len(b"packed") + len(b"of another computer")


def test_a_damaged_tensor_of_a_model_is_named_even_if_its_file_looks_unchanged(
    cellar: Cellar,
) -> None:
    entry = cellar.model.manifest.tensors[0]
    source = cellar.model.sources[entry.digest]
    data = bytearray(source.path.read_bytes())
    data[source.offset] ^= 1
    source.path.write_bytes(data)
    (memory,) = cellar.digests.rglob("*.json")  # a failing disk changes no times
    stamp = Stamp.of(source.path)
    memory.write_bytes(
        msgspec.json.encode(msgspec.json.decode(memory.read_bytes()) | {"stamp": stamp})
    )

    verified = run(cellar.verify("mine"))

    assert verified.models[0].damaged == (entry.name,)
    assert not verified.is_intact


def test_damaged_tensors_of_the_store_are_deleted(cellar: Cellar) -> None:
    cellar.damage(cellar.theirs)

    verified = run(cellar.verify())

    assert verified.store.dropped == (cellar.theirs,)
    assert verified.is_intact  # what is left
    assert not cellar.store.has(cellar.theirs)
    assert cellar.store.has(cellar.mine)


def test_of_the_store_only_the_packed_forms_of_a_named_model_are_checked(cellar: Cellar) -> None:
    cellar.damage(cellar.theirs)
    cellar.damage(cellar.mine)

    verified = run(cellar.verify("mine"))

    assert verified.store.tensors == 1
    assert verified.store.dropped == (cellar.mine,)


def test_a_model_that_cannot_be_read_is_named_with_the_reason(cellar: Cellar) -> None:
    (cellar.folder / "config.json").write_text("{")

    (model,) = run(cellar.verify()).models

    assert model.problem is not None
    assert "config.json" in model.problem


def test_an_unknown_model_is_an_error(cellar: Cellar) -> None:
    with pytest.raises(UsageError):
        run(cellar.verify("theirs"))


def test_pruning_keeps_what_a_plan_or_a_known_model_needs(cellar: Cellar) -> None:
    (planned,) = fill(cellar.store, b"planned")
    cellar.store.inventory.pin([planned])
    expected = {"tensors": 1, "nbytes": len(b"of another computer")}

    assert run(cellar.upkeep.prune(dry_run=True)) == Pruned(**expected, deleted=False)
    assert cellar.store.has(cellar.theirs)

    assert run(cellar.upkeep.prune(dry_run=False)) == Pruned(**expected, deleted=True)
    assert not cellar.store.has(cellar.theirs)
    assert cellar.store.has(planned)
    assert cellar.store.has(cellar.mine)
    assert run(cellar.upkeep.prune(dry_run=False)).tensors == 0


def test_packed_forms_of_a_model_that_is_gone_are_pruned(cellar: Cellar) -> None:
    cellar.known.clear()

    run(cellar.upkeep.prune(dry_run=False))

    assert not cellar.store.has(cellar.mine)


def test_a_model_that_was_never_opened_is_not_read_to_prune(cellar: Cellar, tmp_path: Path) -> None:
    cellar.known.append(make_folder(tmp_path / "new", tensors=tensors_of(seed=7)))

    run(cellar.upkeep.prune(dry_run=True))

    assert len(list(cellar.digests.rglob("*.json"))) == 1


def test_only_what_is_gone_is_said_to_be_deleted(
    cellar: Cellar, monkeypatch: pytest.MonkeyPatch
) -> None:
    cellar.sessions.mkdir()
    for name in ("a.session", "b.session"):
        (cellar.sessions / name).write_bytes(b"what was said")

    def removed(path: Path, **_: object) -> None:
        if path.name in ("a.session", cellar.theirs):
            raise PermissionError  # Windows keeps what somebody reads
        path.unlink(missing_ok=True)

    for module in ("potluck.store.chunks.remove", "potluck.cluster.upkeep.remove"):
        monkeypatch.setattr(module, removed, raising=False)

    found = run(cellar.upkeep.prune(dry_run=False))

    assert found == Pruned(tensors=0, sessions=1, nbytes=len(b"what was said"), deleted=True)


def test_pruning_deletes_all_caches_of_conversations(cellar: Cellar) -> None:
    cellar.sessions.mkdir()
    kept = cellar.sessions / "a.session"
    kept.write_bytes(b"what was said")

    assert run(cellar.upkeep.prune(dry_run=True)).sessions == 1
    assert kept.exists()

    found = run(cellar.upkeep.prune(dry_run=False))
    assert (found.sessions, found.nbytes) == (1, len(b"what was saidof another computer"))
    assert not kept.exists()
