"""Weights that are packed for their scheme before they are sent."""

import asyncio

import pytest
from fake_cluster import FakeComputer, failing, run, until
from fake_deployment import deployment_on, three
from packing_engine import Workplace

from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.stage_deployment import Retries
from potluck.errors import DiskFullError, IntegrityError
from potluck.ids import Digest
from potluck.model.tensor_formats import tensor_bytes
from potluck.store.registry import LocalModel


def dtypes(computer: FakeComputer) -> set[str]:
    """Of the matrices that it was assigned last."""
    return {info.dtype for info in computer.assigned[-1].tensors if len(info.shape) > 1}


async def deploy_once(
    model: LocalModel, workplace: Workplace, *computers: FakeComputer, layers: tuple[int, ...]
) -> Deployment:
    """Everything is packed and sent, and unloaded again."""
    deployment = await deployment_on(model, *computers, layers=layers, workplace=workplace)
    await deployment.start()
    await deployment.stop()
    return deployment


def test_other_computers_are_sent_packed_matrices_and_this_one_reads_the_originals(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1), workplace=workplace
        )
        await deployment.start()

        assert [dtypes(computer) for computer in (desk, laptop, mac)] == [
            {"F32"}, {"PACKED4_SUPER"}, {"PACKED4_SUPER"},
        ]  # fmt: skip
        wanted = model.config.stage_tensors(range(1, 3), embedding=False, head=False)
        packed = sum(
            tensor_bytes(model.config, name, shape, "int4") for name, shape in wanted.items()
        )
        assert deployment.streamed_bytes["Laptop"] == packed  # the vectors are F32 in both
        assert not any("layers.0." in name for name in workplace.engine.packed)
        assert deployment.notes == ()
        await deployment.stop()

    run(main())


def test_a_second_load_packs_and_sends_nothing(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        first = await deploy_once(model, workplace, desk, laptop, mac, layers=(1, 2, 1))
        assert sum(first.streamed_bytes.values())
        workplace.engine.packed.clear()
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1), workplace=workplace
        )
        await deployment.start()

        assert not workplace.engine.packed
        assert sum(deployment.streamed_bytes.values()) == 0
        assert dtypes(laptop) == {"PACKED4_SUPER"}
        await deployment.stop()

    run(main())


def test_this_computer_reads_what_was_packed_before(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        await deploy_once(model, workplace, desk, laptop, layers=(1, 3))
        again = await deployment_on(model, desk, layers=(4,), workplace=workplace)
        await again.start()

        by_name = {info.name: info.dtype for info in desk.assigned[-1].tensors}
        assert by_name["model.layers.0.mlp.up_proj.weight"] == "F32"
        assert by_name["model.layers.1.mlp.up_proj.weight"] == "PACKED4_SUPER"
        for info in desk.assigned[-1].tensors:
            assert desk.sources[Digest(info.digest)].nbytes == info.nbytes
        await again.stop()

    run(main())


def test_a_link_that_is_faster_than_the_quantiser_gets_the_originals(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1), workplace=workplace,
            link_rate=1e15,
        )  # fmt: skip
        await deployment.start()

        assert dtypes(laptop) == {"F32"}
        assert not workplace.engine.packed
        await deployment.stop()

    run(main())


def test_one_stage_is_sent_while_the_next_is_packed(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        seen: list[tuple[str, float]] = []
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1), workplace=workplace,
            changed=lambda: seen.append((deployment.phase, deployment.fraction)),
        )  # fmt: skip
        engine = workplace.engine
        engine.gate = asyncio.Event()
        starting = asyncio.create_task(deployment.start())
        await until(lambda: engine.waiting)
        assert deployment.phase == "quantising"
        assert deployment.message == f"Quantising {model.name} to int4"
        assert all(".layers.1." in name or ".layers.2." in name for name in engine.waiting)

        laptop.gates["send_weights"] = asyncio.Event()
        gate, engine.gate = engine.gate, None
        gate.set()
        await until(lambda: "send_weights" in laptop.calls)
        assert deployment.phase == "streaming"
        await until(lambda: "send_weights" in mac.calls)
        laptop.gates["send_weights"].set()
        await starting

        fractions = [fraction for _, fraction in seen]
        assert fractions == sorted(fractions)
        assert list(dict.fromkeys(phase for phase, _ in seen)) == [
            "quantising", "streaming", "loading",
        ]  # fmt: skip
        await deployment.stop()

    run(main())


def test_a_full_disk_is_a_note_and_no_failure(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        workplace.engine.error = DiskFullError("The disk is full.")
        seen: list[float] = []
        deployment = await deployment_on(
            model, desk, laptop, layers=(1, 3), workplace=workplace,
            changed=lambda: seen.append(deployment.fraction),
        )  # fmt: skip
        await deployment.start()

        assert "F32" in dtypes(laptop)
        assert len(deployment.notes) == 1
        assert f"no room for {model.name} in int4" in deployment.notes[0]
        assert seen == sorted(seen)
        await deployment.stop()

    run(main())


def test_a_packed_file_that_arrives_altered_is_packed_again(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        deployment = await deployment_on(model, desk, laptop, layers=(1, 3), workplace=workplace)
        laptop.gates["send_weights"] = asyncio.Event()
        starting = asyncio.create_task(deployment.start())
        await until(lambda: "send_weights" in laptop.calls)
        info, *_ = (i for i in laptop.assigned[-1].tensors if i.dtype == "PACKED4_SUPER")
        laptop.errors["send_weights"] = failing(IntegrityError("altered", digest=info.digest))
        laptop.gates["send_weights"].set()
        await starting

        assert workplace.engine.packed[info.name] == 2
        assert laptop.calls == ["assign", "send_weights"] * 2 + ["load", "connect"]
        await deployment.stop()

    run(main())


def test_an_original_that_arrives_altered_is_sent_again_while_the_file_is_intact(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        norm = model.manifest.stage(["model.norm.weight"])[0]
        altered = IntegrityError("altered", digest=norm.digest)
        deployment = await deployment_on(model, desk, laptop, layers=(1, 3), workplace=workplace)
        laptop.errors["send_weights"] = failing(altered)
        await deployment.start()
        assert laptop.calls == ["assign", "send_weights"] * 2 + ["load", "connect"]

        laptop.stores_weights = False
        again = await deployment_on(model, desk, laptop, layers=(1, 3), workplace=workplace)
        laptop.errors["send_weights"] = failing(altered, Retries().attempts)
        with pytest.raises(IntegrityError):
            await again.start()

    run(main())


def test_this_computer_reads_the_original_of_a_packed_file_that_is_damaged(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        await deploy_once(model, workplace, desk, laptop, layers=(1, 3))
        info, *_ = (i for i in laptop.assigned[-1].tensors if i.dtype == "PACKED4_SUPER")
        again = await deployment_on(model, desk, layers=(4,), workplace=workplace)
        desk.errors["load"] = failing(IntegrityError("damaged", digest=info.digest))
        await again.start()

        assert desk.calls == ["assign", "load", "assign", "load", "connect"]
        assert {i.name: i.dtype for i in desk.assigned[-1].tensors}[info.name] == "F32"
        assert not workplace.store.has(Digest(info.digest))
        await again.stop()

    run(main())
