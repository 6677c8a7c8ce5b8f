import asyncio
import math
from typing import Any

import msgspec
import pytest
from fake_cluster import FakeComputer, devices, failing, run, until
from model_folders import CONFIG

from potluck.cluster.master.measurements import Measurements, shape_of, unmeasured_devices
from potluck.errors import EngineError, PeerLostError
from potluck.model.config import ModelConfig
from potluck.model.schemes import weight_bytes
from potluck.model.shapes import SHAPES
from potluck.plan.cost import DeviceCost
from potluck.wire.measuring_messages import Profiled
from potluck.wire.messages import (
    DeviceInfo,
)

SHAPE = ModelConfig.from_dict(CONFIG)
MIXED_CONFIG = {
    **CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 4,
    "decoder_sparse_step": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
MIXED = ModelConfig.from_dict(MIXED_CONFIG)


async def measured(measurements: Measurements, *computers: FakeComputer) -> list[DeviceCost]:
    return await measurements.device_costs(computers, CONFIG, SHAPE, "f32")


def test_a_shape_counts_the_bytes_of_the_scheme() -> None:
    full, half = shape_of(SHAPE, "f32", context=64), shape_of(SHAPE, "bf16", context=64)

    shapes = SHAPE.layer_tensors(0).values()
    layer = sum(math.prod(shape) for shape in shapes)
    norms = sum(math.prod(shape) for shape in shapes if len(shape) == 1)  # stay f32
    assert full.layers == (0,) * SHAPE.num_layers
    assert full.layer_bytes == (4 * layer,)
    assert half.layer_bytes == (2 * (layer + norms),)
    assert full.hidden_bytes == 4 * SHAPE.hidden_size
    assert full.context == 64
    assert not full.tied


def test_layers_of_another_size_are_another_kind() -> None:
    shape = shape_of(MIXED, "f32", context=64)

    assert shape.layers == (0, 1, 0, 1)
    assert shape.layer_bytes == tuple(
        weight_bytes(MIXED, MIXED.layer_tensors(layer), "f32") for layer in (0, 1)
    )
    assert shape.layer_bytes[1] > shape.layer_bytes[0]


def test_a_token_reads_few_experts_and_many_tokens_all() -> None:
    config = ModelConfig.from_dict(SHAPES["qwen3-30b-a3b"])
    tensors = config.layer_tensors(0)
    whole = weight_bytes(config, tensors, "int4")
    one_expert = {name: shape for name, shape in tensors.items() if ".experts.7." in name}
    one_token = whole - 120 * weight_bytes(config, one_expert, "int4")

    shape = shape_of(config, "int4", context=64)

    assert shape.reading(1) == pytest.approx(1)
    assert shape.reading(10_000) == pytest.approx(whole / one_token)
    assert 1 < shape.reading(2) < 2
    dense = shape_of(ModelConfig.from_dict(CONFIG), "int4", context=64)
    assert dense.reading(1) == dense.reading(512) == 1


def test_a_tied_head_is_known_as_one() -> None:
    config = ModelConfig.from_dict({**CONFIG, "tie_word_embeddings": True})
    assert shape_of(config, "f32", context=64).tied


@pytest.mark.parametrize(("machine", "together"), [("aa", 1), ("bb", 2), ("", 2)])
def test_nodes_on_one_computer_measure_one_after_the_other(machine: str, together: int) -> None:
    async def main() -> None:
        desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        desk.machine, laptop.machine = machine and "aa", machine
        desk.gates["profile"] = laptop.gates["profile"] = asyncio.Event()
        measuring = asyncio.create_task(measured(Measurements(), desk, laptop))
        for _ in range(20):
            await asyncio.sleep(0)

        assert len(desk.calls + laptop.calls) == together
        desk.gates["profile"].set()
        assert len(await measuring) == 2

    run(main())


def test_every_computer_is_measured_once_for_a_shape() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2, ms=3.0),
        )

        first = await measured(measurements, desk, laptop)
        again = await measured(measurements, desk, laptop)

        assert [device.name for device in first] == ["Desk", "Laptop"]
        assert [device.decode_ms for device in first] == [(1.0,), (3.0,)]
        assert again == first
        assert laptop.calls == ["profile"]
        await measurements.device_costs([desk], CONFIG, SHAPE, "bf16")
        assert desk.calls == ["profile", "profile"]

    run(main())


def test_a_cache_of_8_bits_is_measured_by_itself() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        await measured(measurements, desk)
        for _ in range(2):
            (device,) = await measurements.device_costs([desk], CONFIG, SHAPE, "f32", cache="int8")
            assert device.decode_ms == (1.0,)
        assert desk.caches == ["full", "int8"]
        measurements.observe(desk.node_id, desk.devices[0].id, SHAPE, "f32", 3.0, cache="int8")
        (slower,) = await measurements.device_costs([desk], CONFIG, SHAPE, "f32", cache="int8")
        assert slower.decode_ms == (2.0,)
        assert [device.decode_ms for device in await measured(measurements, desk)] == [(1.0,)]

    run(main())


def test_seats_that_were_not_measured_know_what_is_lent() -> None:
    desk, laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
    laptop.devices = (*devices("cuda", "cpu", memory=1000), *devices("cuda"))

    found = unmeasured_devices([desk, laptop], MIXED, "f32", working=10)

    assert found is not None
    assert [(device.name, device.device) for device in found] == [
        ("Desk", "cpu"),
        ("Laptop", "cuda:0"),
        ("Laptop", "cpu"),
    ]
    assert found[2].memory == 1000 - 10
    assert found[0].decode_ms == (0.0, 0.0)
    laptop.devices = ()
    assert unmeasured_devices([desk, laptop], MIXED, "f32") is None


def test_every_kind_of_layer_has_its_own_times() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        desk.kinds = 2

        for _ in range(2):
            (device,) = await measurements.device_costs([desk], MIXED_CONFIG, MIXED, "f32")
            assert device.decode_ms == (1.0, 1.0)
            assert device.prefill_ms == (2.0, 2.0)
        assert desk.calls == ["profile"]
        measurements.observe(desk.node_id, desk.devices[0].id, MIXED, "f32", 3.0)
        (device,) = await measurements.device_costs([desk], MIXED_CONFIG, MIXED, "f32")
        assert device.decode_ms == (2.0, 2.0)
        assert device.head_ms == 2.0

    run(main())


def test_other_experts_are_measured_anew() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        desk.kinds = 2

        for experts in (8, 16):
            raw = {**MIXED_CONFIG, "num_experts": experts}
            await measurements.device_costs([desk], raw, ModelConfig.from_dict(raw), "f32")
        assert desk.calls == ["profile"] * 2

    run(main())


def test_a_computer_that_measured_other_layers_is_left_out() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        laptop.kinds = 3

        assert [device.name for device in await measured(measurements, desk, laptop)] == ["Desk"]
        with pytest.raises(EngineError, match="Laptop measured other layers"):
            await measured(measurements, laptop)

    run(main())


def test_memory_is_what_is_free_now_and_not_when_it_was_measured() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1, memory=1000)
        await measured(measurements, desk)
        desk.devices = (DeviceInfo(kind="cpu", name="Desk", memory_total=2000, memory_free=10),)

        assert [device.memory for device in await measured(measurements, desk)] == [10]

    run(main())


def test_a_computer_that_leaves_while_it_is_measured_is_left_out() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        laptop.errors["profile"] = failing(PeerLostError("gone"))

        assert [device.name for device in await measured(measurements, desk, laptop)] == ["Desk"]
        assert len(await measured(measurements, desk, laptop)) == 2

    run(main())


def test_without_this_computer_there_is_no_survey() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        desk.errors["profile"] = failing(EngineError("no engine"))

        with pytest.raises(EngineError, match="no engine"):
            await measured(measurements, desk)

    run(main())


# --- several devices of a computer


def test_every_device_is_a_seat_measured_one_after_the_other_and_once() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        desk.devices = devices("cuda", "cuda", "cpu")
        desk.gates["profile"] = asyncio.Event()

        asking = asyncio.create_task(measured(measurements, desk, laptop))
        await until(lambda: desk.measured and laptop.measured)
        assert desk.measured == [desk.devices[0].id]  # the laptop's does not wait for it
        desk.gates["profile"].set()

        found = await asking
        assert [(device.name, device.device) for device in found] == [
            ("Desk", "cuda:0"), ("Desk", "cuda:1"), ("Desk", "cpu"), ("Laptop", "cpu"),
        ]  # fmt: skip
        assert len({device.node for device in found}) == 2
        assert desk.measured == [device.id for device in desk.devices]
        assert await measured(measurements, desk, laptop) == found
        assert len(desk.measured) == 3

    run(main())


def test_the_parts_of_a_cpu_are_numbered_and_have_memory_of_their_own() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        desk.devices = (
            DeviceInfo(kind="cpu", memory_total=9, memory_free=5),
            DeviceInfo(kind="cpu", index=1, memory_total=9, memory_free=3),
        )
        found = await measured(measurements, desk)
        assert [(device.device, device.memory) for device in found] == [("cpu:0", 5), ("cpu:1", 3)]

    run(main())


def test_a_device_that_cannot_be_measured_is_left_out_and_named() -> None:
    async def main() -> None:
        measurements, desk, notes = Measurements(), FakeComputer("Desk", 1), list[str]()
        desk.devices = devices("cuda", "cpu")
        desk.errors["profile"] = failing(EngineError("No driver."))

        found = await measurements.device_costs([desk], CONFIG, SHAPE, "f32", left_out=notes.append)

        assert [device.device for device in found] == ["cpu"]
        assert notes == ["Desk/cuda:0 is left out: No driver."]
        desk.errors["profile"] = failing(EngineError("No driver."), 2)
        with pytest.raises(EngineError, match="No driver"):
            await measurements.device_costs([desk], CONFIG, SHAPE, "bf16", left_out=notes.append)

    run(main())


def test_a_computer_that_lists_or_measures_a_device_twice_has_it_once() -> None:
    class Confused(FakeComputer):
        async def profile(self, *asked: Any, **named: Any) -> Profiled:
            profile = await super().profile(*asked, **named)
            return msgspec.structs.replace(profile, device=self.devices[0])

    async def main() -> None:
        desk, odd = FakeComputer("Desk", 1), Confused("Odd", 2)
        first, second = devices("cuda", "cuda")
        odd.devices = (first, first, second)
        notes: list[str] = []
        found = await Measurements().device_costs(
            [desk, odd], CONFIG, SHAPE, "f32", left_out=notes.append
        )
        assert [(device.name, device.device) for device in found[1:]] == [("Odd", "cuda:0")]
        assert len(notes) == 1
        assert "Odd/cuda:1" in notes[0]

    run(main())


def test_of_a_computer_that_is_gone_no_second_device_is_asked() -> None:
    async def main() -> None:
        measurements, desk, laptop = (
            Measurements(),
            FakeComputer("Desk", 1),
            FakeComputer("Laptop", 2),
        )
        laptop.devices = devices("cuda", "cpu")
        laptop.errors["profile"] = failing(PeerLostError("gone"))

        assert [device.name for device in await measured(measurements, desk, laptop)] == ["Desk"]
        assert len(laptop.measured) == 1

    run(main())


def test_an_engine_that_is_just_starting_is_asked_for_its_best_device_and_then_the_rest() -> None:
    async def main() -> None:
        measurements, desk, there = Measurements(), FakeComputer("Desk", 1), devices("cuda", "cpu")
        desk.devices = ()
        desk.gates["profile"] = asyncio.Event()
        asking = asyncio.create_task(measured(measurements, desk))
        await until(lambda: desk.measured)
        desk.devices = there
        desk.gates["profile"].set()

        assert [device.device for device in await asking] == ["cuda:0", "cpu"]
        assert desk.measured == [None, there[1].id]
        await measured(measurements, desk)
        assert len(desk.measured) == 2

    run(main())


def test_only_the_device_that_was_slower_is_thought_slower() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        desk.devices = devices("cuda", "cpu")
        await measured(measurements, desk)
        measurements.observe(desk.node_id, desk.devices[1].id, SHAPE, "f32", 3.0)
        assert [device.decode_ms for device in await measured(measurements, desk)] == [
            (1.0,),
            (2.0,),
        ]

    run(main())
