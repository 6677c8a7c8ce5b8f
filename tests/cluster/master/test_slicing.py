"""What a rank of a group is sent: the bytes of its slices alone, whose digests are computed once."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cluster import run
from model_folders import CONFIG, in_fp8, make_folder
from packing_engine import Workplace

from potluck.cluster.master import slicing
from potluck.cluster.master.slicing import Checks, sent_slices
from potluck.cluster.master.stage_tensors import StageTensors, tensor_info
from potluck.errors import BrokenModelError
from potluck.ids import Digest, NodeId
from potluck.model.schemes import Scheme
from potluck.model.shares import Share
from potluck.model.stored_slices import stage_slices, stored_slice
from potluck.plan.stages import Plan, StagePlan
from potluck.store.quantised import Packed, recall, remember
from potluck.store.registry import LocalModel, open_model
from potluck.store.source import TensorSource
from potluck.wire.messages import TensorInfo

# Of its matrices, two ranks have whole super-blocks.
WIDE = {**CONFIG, "intermediate_size": 512, "head_dim": 128}
RANK = Share(rank=1, parts=(1, 1))


@pytest.fixture
def wide(tmp_path: Path) -> LocalModel:
    return open_model(
        make_folder(tmp_path / "wide", config=WIDE), cache_dir=tmp_path / "digests-of-wide"
    )


async def cut(
    model: LocalModel, workplace: Workplace | None, scheme: Scheme = "int4", share: Share = RANK
) -> StageTensors:
    """All layers, as one rank is sent them."""
    layers = range(model.config.num_layers)
    expected = model.config.stage_tensors(layers, embedding=True, head=False)
    slices = stage_slices(model.config, layers, share, scheme)
    packing = None if workplace is None else workplace.packing
    tensors = StageTensors(model, scheme, expected, packing, slices)
    await tensors.prepare()
    await tensors.pack(lambda _: None)
    await tensors.cut()
    return tensors


def cut_ones(tensors: StageTensors) -> dict[str, TensorInfo]:
    infos = tensors.infos(is_local=False)
    return {info.name.removeprefix("model."): info for info in infos if info.whole is not None}


@pytest.mark.parametrize(("scheme", "dtype"), [("int4", "PACKED4_SUPER"), ("f32", "F32")])
def test_each_rank_is_sent_half_of_each_matrix_of_a_layer(
    wide: LocalModel, workplace: Workplace, scheme: Scheme, dtype: str
) -> None:
    async def main() -> None:
        ranks = [
            await cut(wide, workplace, scheme, Share(rank=rank, parts=(1, 1))) for rank in (0, 1)
        ]
        whole = StageTensors(wide, scheme, wide.config.stage_tensors(range(2), embedding=False, head=False), workplace.packing)  # fmt: skip
        await whole.prepare()
        wholes = {info.digest: info for info in whole.infos(is_local=False)}

        for name in (*(f"self_attn.{one}_proj" for one in "qkvo"), *(f"mlp.{one}_proj" for one in ("gate", "up", "down"))):  # fmt: skip
            parts = [cut_ones(rank)[f"layers.0.{name}.weight"] for rank in ranks]
            assert {part.dtype for part in parts} == {dtype}
            assert parts[0].digest != parts[1].digest
            assert parts[0].whole == parts[1].whole in wholes
            assert sum(part.nbytes for part in parts) == wholes[str(parts[0].whole)].nbytes
        replicated = {i.name: i for i in ranks[0].infos(is_local=False) if i.whole is None}
        assert {name.rpartition(".layers.")[2][2:] for name in replicated} >= {"input_layernorm.weight"}  # fmt: skip
        assert "model.embed_tokens.weight" in replicated

    run(main())


def test_a_slice_is_sent_out_of_the_file_that_has_the_whole(
    wide: LocalModel, workplace: Workplace
) -> None:
    """Its bytes have the digest that was announced, from wherever they are sent on."""

    async def main() -> None:
        tensors = await cut(wide, workplace)
        infos = tensors.infos(is_local=False)
        sources = await tensors.sources({info.digest for info in infos})
        assert sources is not None
        for info in infos:
            source = sources[Digest(info.digest)]
            assert (source.digest(), source.nbytes) == (info.digest, info.nbytes)
        down = cut_ones(tensors)["layers.0.mlp.down_proj.weight"]
        source = sources[Digest(down.digest)]
        assert source.path == workplace.store.path(Digest(str(down.whole)))
        assert source.read(77, 1000) == source.read(0, down.nbytes)[77:1077]

    run(main())


def test_digests_of_slices_are_computed_once(
    wide: LocalModel, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        first = await cut(wide, workplace)
        with monkeypatch.context() as patch:
            patch.setattr(slicing, "_read", lambda _: pytest.fail("it is known"))
            again = await cut(wide, workplace)
            assert again.infos(is_local=False) == first.infos(is_local=False)

    run(main())


def test_ranks_that_are_cut_at_once_have_a_tensor_read_once(
    wide: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may be given up meanwhile."""
    info = tensor_info(wide.manifest.tensors[0])
    source = wide.sources[Digest(info.digest)]
    may_end, read = threading.Event(), list[TensorSource]()

    def reading(source: TensorSource) -> Digest:
        read.append(source)
        assert may_end.wait(20)
        return source.digest()

    async def main() -> None:
        checks = Checks()
        ranks = [asyncio.create_task(checks.check(info, source)) for _ in range(2)]
        await asyncio.sleep(0)
        ranks[0].cancel()
        await asyncio.wait(ranks[:1])
        may_end.set()
        await ranks[1]
        assert ranks[0].cancelled()
        assert len(read) == 1
        await checks.check(info, source)  # it may have changed since
        assert len(read) == 2

    monkeypatch.setattr(slicing, "_read", reading)
    run(main())


def test_what_was_digested_before_something_damaged_is_remembered(
    wide: LocalModel, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        names = [info.name for info in cut_ones(await cut(wide, None, "f32")).values()]
        source = wide.sources[Digest(wide.manifest.stage(names[-1:])[0].digest)]
        data = bytearray(source.path.read_bytes())
        data[source.offset] ^= 1
        source.path.write_bytes(data)
        with pytest.raises(BrokenModelError, match="Download the model again"):
            await cut(wide, workplace, "f32")
        known = recall(workplace.packing.memory, wide.manifest.model_id)
        assert len(known) == len(names) - 1

    monkeypatch.setattr(slicing, "THREADS", 1)
    run(main())


def test_a_digest_that_is_not_that_of_the_bytes_is_computed_again(
    wide: LocalModel, workplace: Workplace
) -> None:
    """It was remembered wrongly, or computed of a file that was damaged then."""

    async def main() -> None:
        right = await cut(wide, workplace)
        name = "layers.0.mlp.up_proj.weight"
        one = cut_ones(right)[name]
        part = stage_slices(wide.config, range(2), RANK, "int4")[one.name]
        shape = wide.config.stage_tensors(range(1), embedding=False, head=False)[one.name]
        stored = stored_slice(wide.config, one.name, part, one.dtype, shape)
        assert stored is not None
        wrong = {stored.runs.name(str(one.whole)): Packed("ab" * 32, one.nbytes)}
        remember(workplace.packing.memory, wide.manifest.model_id, wrong)

        tensors = await cut(wide, workplace)
        assert cut_ones(tensors)[name].digest == "ab" * 32
        await tensors.repair("ab" * 32)
        await tensors.cut()
        assert cut_ones(tensors)[name] == one
        assert cut_ones(await cut(wide, workplace))[name] == one

    run(main())


def test_what_is_packed_is_packed_again_to_be_cut_if_the_store_has_deleted_it(
    wide: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        other = await cut(wide, workplace, share=Share(rank=0, parts=(1, 1)))
        for info in cut_ones(other).values():
            workplace.store.discard(Digest(str(info.whole)))
        workplace.engine.packed.clear()

        tensors = await cut(wide, workplace)
        assert set(workplace.engine.packed) == {info.name for info in cut_ones(other).values()}
        assert await tensors.sources({i.digest for i in cut_ones(tensors).values()}) is not None

    run(main())


@pytest.mark.usefixtures("removed_in_threads")
def test_what_is_damaged_is_not_cut(wide: LocalModel, workplace: Workplace) -> None:
    """A rank sees the slice alone: its digest is that of intact bytes, or there is none."""

    async def main() -> None:
        right = await cut(wide, workplace, share=Share(rank=0, parts=(1, 1)))
        one = cut_ones(right)["layers.0.mlp.up_proj.weight"]
        path = workplace.store.path(Digest(str(one.whole)))
        intact = path.read_bytes()
        path.write_bytes(bytes(len(intact)))
        await cut(wide, workplace)
        assert path.read_bytes() == intact

        source = wide.sources[Digest(wide.manifest.stage([one.name])[0].digest)]
        data = bytearray(source.path.read_bytes())
        data[source.offset] ^= 1
        source.path.write_bytes(data)
        with pytest.raises(BrokenModelError, match="Download the model again"):
            await cut(wide, None, "f32")

    run(main())


def test_matrices_in_several_tensors_are_packed_since_these_have_no_slices(
    wide: LocalModel, workplace: Workplace
) -> None:
    """As a whole, such a matrix is no larger than its packed form, and is sent as it is."""

    async def main() -> None:
        model = in_fp8(wide)
        await cut(model, workplace, "int8", share=Share(rank=0, parts=(1,)))
        assert not [name for name in workplace.engine.packed if ".layers." in name]
        own = cut_ones(await cut(model, workplace, "int8"))
        assert {info.dtype for info in own.values()} == {"PACKED8"}
        assert len(own) == 14

    run(main())


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, wide: LocalModel) -> None:
    async def main() -> None:
        source = next(iter(wide.sources.values()))
        source.path.unlink()
        with pytest.raises(BrokenModelError, match="cannot be read"):
            await cut(wide, None, "f32")

    run(main())


def test_slices_are_sent_where_a_computer_has_a_part_of_a_group(wide: LocalModel) -> None:
    stage = StagePlan(
        node=NodeId("1"), name="1", device="cpu", layers=range(2), embedding=True, head=True,
        predicted_ms=1.0, head_ms=0.0, prefill_ms=1.0, memory=1, shares=(1, 1),
    )  # fmt: skip
    other = replace(stage, node=NodeId("2"), rank=1, head=False)
    here = replace(other, node=stage.node)
    alone = replace(stage, shares=(1,))

    def sent(stage: StagePlan, *stages: StagePlan) -> int:
        plan = Plan(
            stages=stages, hops=(), token_ms=1.0, predicted_tokens_per_s=1.0, users=1, users_tokens_per_s=1.0,
            alone={}, lower_bound_ms=1.0, optimal=True, explanation="",
        )  # fmt: skip
        return len(sent_slices(wide.config, stage, plan, "f32"))

    assert sent(other, stage, other) == sent(stage, stage, other) > 0
    assert not sent(here, stage, here)
    assert not sent(alone, alone)
