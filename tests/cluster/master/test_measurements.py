import asyncio
import math
from typing import Any

import msgspec
import pytest
from fake_cluster import FakeComputer, devices, failing, run, until
from measured import SHAPE, measured, observe
from model_folders import CONFIG

from potluck.cluster.master.device_costs import unmeasured_devices, with_depth
from potluck.cluster.master.measurements import NEEDED, Measurements
from potluck.errors import EngineError, PeerLostError
from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.plan.correction import MAX_AGE_S
from potluck.plan.cost import DeviceCost
from potluck.plan.shape import shape_of
from potluck.wire.measuring_messages import Profiled
from potluck.wire.messages import DeviceInfo

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
PROFILED_MS = SHAPE.num_layers * 1.0 + 1.0  # of a token on a fake computer: its layers and the head


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
        observe(measurements, desk, 3 * PROFILED_MS, cache="int8")
        (slower,) = await measurements.device_costs([desk], CONFIG, SHAPE, "f32", cache="int8")
        assert slower.decode_ms == (3.0,)
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
        layers = range(MIXED.num_layers)
        for _ in range(NEEDED):
            measurements.observe(
                desk.node_id, desk.devices[0].id, MIXED, "f32", 10.0, layers=layers, head=True
            )
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
        observe(measurements, desk, PROFILED_MS, device=1)
        observe(measurements, desk, 3 * PROFILED_MS, device=1)
        assert [device.decode_ms for device in await measured(measurements, desk)] == [
            (1.0,),
            (3.0,),
        ]

    run(main())


# --- what use teaches


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.7, 4.0])
def test_measurements_converge_to_what_answers_take_and_never_run_away(ratio: float) -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        (first,) = await measured(measurements, desk)
        for _ in range(40):  # rounds of use, with a plan after each round
            observe(measurements, desk, ratio * PROFILED_MS)
            (cost,) = await measured(measurements, desk)
            assert cost.decode_ms == pytest.approx((ratio * first.decode_ms[0],))
            assert cost.head_ms == pytest.approx(ratio * first.head_ms)
            assert cost.prefill_ms == first.prefill_ms
        assert desk.calls == ["profile"]

    run(main())


def test_a_part_of_the_layers_teaches_as_much_as_all_of_them() -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        await measured(measurements, desk)
        for layers, head, ms in 2 * ((range(2), False, 4.0), (range(1, 2), True, 4.0)):
            measurements.observe(
                desk.node_id, desk.devices[0].id, SHAPE, "f32", ms, layers=layers, head=head
            )

        assert [cost.decode_ms for cost in await measured(measurements, desk)] == [(2.0,)]

    run(main())


def test_what_was_learnt_is_forgotten_with_time_and_with_the_profile() -> None:
    async def main() -> None:
        now = 0.0
        measurements, desk = Measurements(clock=lambda: now), FakeComputer("Desk", 1)
        for forget in ("time", "profile"):
            await measured(measurements, desk)
            observe(measurements, desk, 3 * PROFILED_MS)
            assert [cost.decode_ms for cost in await measured(measurements, desk)] == [(3.0,)]
            if forget == "time":
                now += MAX_AGE_S
            else:
                measurements.forget_profiles(desk.node_id)
            assert [cost.decode_ms for cost in await measured(measurements, desk)] == [(1.0,)]

    run(main())


@pytest.mark.parametrize("measured_ms", [math.nan, math.inf])
def test_a_time_that_cannot_be_teaches_nothing(measured_ms: float) -> None:
    async def main() -> None:
        measurements, desk = Measurements(), FakeComputer("Desk", 1)
        await measured(measurements, desk)
        observe(measurements, desk, measured_ms)

        assert [cost.decode_ms for cost in await measured(measurements, desk)] == [(1.0,)]

    run(main())


def test_what_a_device_takes_longer_in_long_conversations_is_a_cost_of_it() -> None:
    cost = DeviceCost(
        node=NodeId("0" * 64), name="Desk", device="cpu", memory=1, decode_ms=(1.0,), prefill_ms=(8.0,), head_ms=0.0
    )  # fmt: skip
    shape = shape_of(SHAPE, "f32", context=1)
    device = DeviceInfo(kind="cpu", memory_total=1, memory_free=1)
    old = Profiled(device=device, decode_ms=(1.0,), prefill_ms=(8.0,), head_ms=0.0)
    new = msgspec.structs.replace(old, deep_decode_ms=(2.0,), deep_prefill_ms=(24.0,), deep=4096)

    grown = with_depth(cost, new, shape, chunk=128)

    assert with_depth(cost, old, shape, chunk=128) == cost
    row = shape.caches[0].read_bytes(1)
    assert grown.token_read_ms == pytest.approx((1.0 / (4096 - 256) / row,))
    assert grown.chunk_read_ms == pytest.approx((16.0 / 128 / 4096 / row,))
