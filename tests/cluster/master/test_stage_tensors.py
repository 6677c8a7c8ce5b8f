"""What a stage is made of: packed where that is known and here, the originals everywhere else."""

from pathlib import Path

import msgspec
import pytest
from chunk_stores import is_intact
from fake_cluster import run
from fake_engine import assign
from model_folders import CONFIG, in_fp8, make_folder
from packing_engine import Workplace

from potluck.cluster.master.stage_tensors import StageTensors
from potluck.cluster.worker.assignments import check_assignment
from potluck.errors import (
    BrokenModelError,
    DiskFullError,
    EngineError,
    IntegrityError,
    PotluckError,
)
from potluck.ids import Digest
from potluck.model.formats import INT4_SUPER
from potluck.model.schemes import Scheme
from potluck.store.quantised import Packed, remember
from potluck.store.registry import LocalModel, open_model
from potluck.wire.messages import TensorInfo


async def prepared(
    model: LocalModel, workplace: Workplace | None, scheme: Scheme = "int4"
) -> StageTensors:
    """Layers 1 and 2, and the head."""
    expected = model.config.stage_tensors(range(1, 3), embedding=False, head=True)
    packing = workplace.packing if workplace is not None else None
    tensors = StageTensors(model, scheme, expected, packing)
    await tensors.prepare()
    return tensors


async def packed(model: LocalModel, workplace: Workplace, scheme: Scheme = "int4") -> StageTensors:
    tensors = await prepared(model, workplace, scheme)
    await tensors.pack(lambda _: None)
    return tensors


def dtypes(infos: tuple[TensorInfo, ...]) -> set[str]:
    return {info.dtype for info in infos if len(info.shape) > 1}


def check(model: LocalModel, infos: tuple[TensorInfo, ...], scheme: Scheme) -> None:
    """A worker takes these for its stage, or refuses them."""
    message = msgspec.structs.replace(
        assign(model), scheme=scheme, layers=(1, 3), embedding=False, head=True, tensors=infos
    )
    assert check_assignment(message).keys() == {info.digest for info in infos}


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("int4", {"PACKED4_SUPER"}),
        ("int8", {"PACKED8"}),
        ("int4-head8", {"PACKED4_SUPER", "PACKED8"}),
        ("int4-offset", {"PACKED4_OFFSET", "PACKED8"}),
    ],
)
def test_matrices_are_packed_and_vectors_are_not(
    model: LocalModel, workplace: Workplace, scheme: Scheme, wanted: set[str]
) -> None:
    async def main() -> None:
        tensors = await prepared(model, workplace, scheme)
        assert dtypes(tensors.infos(is_local=False)) == {"F32"}
        to_read, seen = tensors.unpacked_bytes, list[int]()
        await tensors.pack(seen.append)

        infos = tensors.infos(is_local=False)
        check(model, infos, scheme)
        assert dtypes(infos) == wanted
        assert {info.dtype for info in infos if len(info.shape) == 1} == {"F32"}
        assert sum(seen) == to_read
        assert tensors.unpacked_bytes == 0
        assert tensors.problem is None

    run(main())


def test_a_worker_takes_no_other_bits_than_the_scheme_has(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        infos = (await packed(model, workplace, "int4")).infos(is_local=False)
        for scheme in ("int8", "int4-offset", "int4-head8", "bf16"):
            with pytest.raises(BrokenModelError, match="PACKED4_SUPER"):
                check(model, infos, scheme)
        first, *rest = infos
        assert first.dtype == "PACKED4_SUPER"
        with pytest.raises(BrokenModelError, match="bytes"):
            check(model, (msgspec.structs.replace(first, nbytes=first.nbytes - 1), *rest), "int4")

    run(main())


def test_in_other_schemes_the_originals_are_what_there_is(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        for tensors in (await packed(model, workplace, "bf16"), await prepared(model, None)):
            infos = tensors.infos(is_local=False)
            sources = await tensors.sources({info.digest for info in infos})

            assert dtypes(infos) == {"F32"}
            assert sources is not None
            assert {Digest(info.digest): info.nbytes for info in infos} == {
                digest: source.nbytes for digest, source in sources.items()
            }
        assert not workplace.engine.packed

    run(main())


def test_a_second_load_packs_nothing(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        first = await packed(model, workplace)
        made = dict(workplace.engine.packed)
        again = await prepared(model, workplace)

        assert again.unpacked_bytes == 0
        assert again.infos(is_local=False) == first.infos(is_local=False)
        assert again.infos(is_local=True) == first.infos(is_local=False)
        await again.pack(lambda _: None)
        assert workplace.engine.packed == made

    run(main())


def test_what_another_stage_packed_meanwhile_is_not_packed_again(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        one, other = await prepared(model, workplace), await prepared(model, workplace)
        await one.pack(lambda _: None)
        await other.pack(lambda _: None)

        assert set(workplace.engine.packed.values()) == {1}
        assert one.infos(is_local=False) == other.infos(is_local=False)

    run(main())


def test_a_scheme_that_shares_matrices_packs_the_rest(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        await packed(model, workplace, "int4")
        workplace.engine.packed.clear()
        await packed(model, workplace, "int4-head8")

        assert workplace.engine.packed == {"lm_head.weight": 1}

    run(main())


def test_what_was_removed_is_packed_again_when_it_is_needed(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        infos = (await packed(model, workplace)).infos(is_local=False)
        lost, *_ = (info for info in infos if info.dtype == "PACKED4_SUPER")
        workplace.store.discard(Digest(lost.digest))
        workplace.engine.packed.clear()
        tensors = await prepared(model, workplace)

        assert tensors.infos(is_local=False) == infos  # whoever has it is not sent it
        assert [i.dtype for i in tensors.infos(is_local=True) if i.name == lost.name] == ["F32"]
        assert not workplace.engine.packed
        sources = await tensors.sources({lost.digest})
        assert sources is not None
        assert sources[Digest(lost.digest)].path == workplace.store.path(Digest(lost.digest))
        assert workplace.engine.packed == {lost.name: 1}

    run(main())


@pytest.mark.usefixtures("removed_in_threads")
def test_damaged_and_deleted_packed_files_are_packed_again(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        tensors = await packed(model, workplace)
        first, second, third, *_ = (
            Digest(i.digest) for i in tensors.infos(is_local=False) if i.dtype == "PACKED4_SUPER"
        )
        store = workplace.store
        for damaged in (first, second):
            store.path(damaged).write_bytes(bytes(store.path(damaged).stat().st_size))
        store.path(third).unlink()

        await tensors.repair(first)  # what else is damaged goes as well
        assert await tensors.sources({first, second, third}) is not None
        assert all(is_intact(store, digest) for digest in (first, second, third))

    run(main())


def test_a_damaged_file_of_the_model_itself_is_an_error_that_names_it(
    tmp_path: Path, workplace: Workplace
) -> None:
    async def main() -> None:
        folder = make_folder(tmp_path / "model", config={**CONFIG, "num_hidden_layers": 4})
        model = open_model(folder, cache_dir=tmp_path / "cache")
        tensors = await prepared(model, workplace)
        digest = next(iter(model.sources))
        await tensors.repair(digest)  # intact: the damage was on the way
        await tensors.repair("ab" * 32)
        await tensors.repair(None)

        file = model.sources[digest].path
        data = bytearray(file.read_bytes())
        data[model.sources[digest].offset] ^= 1
        file.write_bytes(data)
        with pytest.raises(BrokenModelError, match=r"model\.safetensors.*Download the model again"):
            await tensors.repair(digest)
        file.unlink()
        with pytest.raises(BrokenModelError, match="cannot be read"):
            await tensors.repair(digest)

    run(main())


def test_a_file_that_was_cut_off_is_packed_again(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        tensors = await packed(model, workplace)
        info, *_ = (i for i in tensors.infos(is_local=False) if i.dtype == "PACKED4_SUPER")
        path = workplace.store.path(Digest(info.digest))
        path.write_bytes(b"short")

        assert await tensors.sources({info.digest}) is not None
        assert path.stat().st_size == info.nbytes

    run(main())


def test_bytes_that_are_not_what_they_were_are_assigned_anew(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        tensors = await packed(model, workplace)
        before = tensors.infos(is_local=False)
        info, *_ = (i for i in before if i.dtype == "PACKED4_SUPER")
        workplace.store.discard(Digest(info.digest))
        workplace.engine.salt = b"a later version"

        assert await tensors.sources({info.digest}) is None
        after = {i.name: i for i in tensors.infos(is_local=False)}
        assert after[info.name].digest != info.digest
        assert await tensors.sources({after[info.name].digest}) is not None
        remembered = {i.name: i for i in (await prepared(model, workplace)).infos(is_local=False)}
        assert remembered == after

    run(main())


def test_a_memory_that_cannot_be_right_is_not_believed(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        wrong = {"4 lm_head.weight": Packed("ab" * 32, 5)}
        remember(workplace.packing.memory, model.manifest.model_id, wrong)
        tensors = await prepared(model, workplace)

        head = model.manifest.stage(["lm_head.weight"])[0]
        assert tensors.unpacked_bytes > head.nbytes
        assert "ab" * 32 not in {info.digest for info in tensors.infos(is_local=False)}

    run(main())


@pytest.mark.parametrize("is_begun", [True, False])
def test_what_the_disk_does_not_take_is_sent_as_it_is(
    model: LocalModel, tmp_path: Path, is_begun: bool
) -> None:
    async def main() -> None:
        with Workplace(tmp_path, quota=None if is_begun else 100) as workplace:
            workplace.engine.error = DiskFullError("No space is left.") if is_begun else None
            tensors = await packed(model, workplace)

            infos = tensors.infos(is_local=False)
            check(model, infos, "int4")
            assert "F32" in dtypes(infos)
            assert tensors.problem is not None
            assert "no room" in tensors.problem
            assert await tensors.sources({info.digest for info in infos}) is not None

    run(main())


def test_what_can_no_more_be_packed_again_is_assigned_as_it_is(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        tensors = await packed(model, workplace)
        info, *_ = (i for i in tensors.infos(is_local=False) if i.dtype == "PACKED4_SUPER")
        workplace.store.discard(Digest(info.digest))
        workplace.engine.error = DiskFullError("No space is left.")

        assert await tensors.sources({info.digest}) is None
        now = {i.name: i.dtype for i in tensors.infos(is_local=False)}
        assert now[info.name] == "F32"
        assert "PACKED4_SUPER" in now.values()

    run(main())


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (IntegrityError("altered"), BrokenModelError),
        (EngineError("The compute process stopped."), EngineError),
    ],
)
def test_any_other_failure_is_an_error(
    model: LocalModel, workplace: Workplace, error: PotluckError, raised: type[PotluckError]
) -> None:
    async def main() -> None:
        workplace.engine.error = error
        with pytest.raises(raised):
            await packed(model, workplace)

        assert (await prepared(model, workplace)).unpacked_bytes  # and what was done is remembered

    run(main())


def test_what_is_under_way_is_kept_and_then_let_go(model: LocalModel, tmp_path: Path) -> None:
    async def main() -> None:
        expected = model.config.stage_tensors(range(1, 3), embedding=False, head=True)
        matrices = [shape for shape in expected.values() if len(shape) == 2]
        quota = sum(INT4_SUPER.nbytes(*shape) for shape in matrices)
        with Workplace(tmp_path, quota=quota) as workplace:
            tensors = await packed(model, workplace)
            with pytest.raises(DiskFullError):
                workplace.store.free_for(100)
            tensors.release()
            workplace.store.free_for(100)

            assert workplace.store.nbytes < quota

    run(main())


def test_all_that_a_matrix_is_stored_in_is_packed_into_one(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        tensors = await packed(in_fp8(model), workplace, "int4")

        names = [info.name for info in tensors.infos(is_local=False)]
        assert not any(name.endswith("_scale") for name in names)
        assert workplace.engine.packed["model.layers.1.mlp.up_proj.weight"] == 1

    run(main())


def test_what_would_not_become_smaller_is_sent_as_it_is(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        tensors = await packed(in_fp8(model), workplace, "int8")

        dtypes = {info.name: info.dtype for info in tensors.infos(is_local=False)}
        assert dtypes["model.layers.1.mlp.up_proj.weight"] == "F8_E4M3"
        assert dtypes["model.layers.1.mlp.up_proj.weight_scale"] == "F32"
        assert workplace.engine.packed == {"lm_head.weight": 1}

    run(main())
