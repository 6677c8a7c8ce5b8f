"""In how many bits a model is held: what fits, and what is said of it."""

import dataclasses
import math

import pytest
from fake_cluster import devices, run
from fake_home import Home, small

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.asked import schemes_of
from potluck.cluster.views import plan_view
from potluck.errors import NotEnoughMemoryError
from potluck.model.footprint import working_bytes
from potluck.model.nearest import explain_more_bits
from potluck.model.quantized import Quantization
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel

CACHE8 = PlanRequest(context=64, scheme="int8", cache="int8")


def test_auto_takes_the_best_quality_that_fits_and_says_why(home: Home) -> None:
    async def main() -> None:
        room = shape_of(home.model.config, "int8", context=64).model_memory
        home.desk.devices = (small(home.desk, room),)
        home.laptop.devices = (small(home.laptop, 1),)
        planned = await home.master.plan(PlanRequest(model="big", context=64))

        assert planned.scheme == "int8"
        assert "In bf16 the model needs" in planned.note
        home.desk.devices = (small(home.desk, 10_000_000),)
        planned = await home.master.plan(PlanRequest(model="big", context=64))
        assert (planned.scheme, planned.note) == ("f32", "")

    run(main())


def test_what_did_not_fit_is_said_with_its_own_numbers(home: Home) -> None:
    """There may be more than enough memory in all, and too little for a share or beside what computes."""

    async def main() -> None:
        shares = (("Desk", 1), ("Laptop", 3))
        home.desk.devices = (small(home.desk, 20_000),)
        planned = await home.master.plan(PlanRequest(layers=shares, context=64))

        assert planned.scheme == "int8"
        assert planned.note == (
            "In bf16 Desk's share needs 23.8 kB with its cache, and it offers 20 kB;"
            " this is the best quality that fits."
        )
        room = shape_of(home.model.config, "bf16", context=64).model_memory
        home.desk.devices = (small(home.desk, room - 1),)
        home.laptop.devices = (small(home.laptop, 1),)
        planned = await home.master.plan(PlanRequest(context=64))
        assert planned.scheme == "int8"
        assert "your computers offer" in planned.note

    run(main())


def test_a_scheme_that_cannot_fit_is_refused_before_anything_is_measured(home: Home) -> None:
    async def main() -> None:
        room = shape_of(home.model.config, "int8", context=64).model_memory
        home.desk.devices = (small(home.desk, room),)
        home.laptop.devices = (small(home.laptop, 1),)
        for too_large in ("f32", "bf16"):
            with pytest.raises(NotEnoughMemoryError, match="Or load it in int8") as caught:
                await home.master.plan(PlanRequest(context=64, scheme=too_large))
            assert caught.value.data["fits_in"] == "int8"
        home.desk.devices = (small(home.desk, 1),)
        with pytest.raises(NotEnoughMemoryError) as caught:
            await home.master.plan(PlanRequest(context=64, scheme="int4"))
        assert "fits_in" not in caught.value.data
        assert "Or load" not in caught.value.message
        assert not home.desk.calls + home.laptop.calls

    run(main())


def test_a_cpu_has_room_for_a_cache_of_8_bits_though_a_gpu_keeps_16(home: Home) -> None:
    async def main() -> None:
        room = shape_of(home.model.config, "int8", context=64, cache="int8").model_memory
        home.desk.devices = (small(home.desk, room),)
        home.laptop.devices = devices("cuda", memory=1)
        planned = await home.master.plan(CACHE8)

        assert [stage.name for stage in planned.plan.stages] == ["Desk"]
        assert home.desk.caches == ["int8"]
        home.desk.devices = (small(home.desk, room - 1),)
        with pytest.raises(NotEnoughMemoryError):
            await home.master.plan(CACHE8)

    run(main())


def test_a_gpu_has_room_for_a_cache_of_16_bits_whatever_a_cpu_keeps(home: Home) -> None:
    async def main() -> None:
        config, working = home.model.config, working_bytes(home.model.config, 64)
        full = shape_of(config, "int8", context=64)
        home.desk.devices = (small(home.desk, 1),)
        for spare, fits in ((-1, False), (full.ends_memory(first=True, last=True), True)):
            memory = math.ceil((full.model_memory + spare + working) / 0.85)
            home.laptop.devices = devices("cuda", memory=memory)
            if fits:
                assert [s.name for s in (await home.master.plan(CACHE8)).plan.stages] == ["Laptop"]
            else:
                with pytest.raises(NotEnoughMemoryError):
                    await home.master.plan(CACHE8)


def test_a_model_held_in_more_bits_than_it_is_stored_in_is_said_with_the_plan(home: Home) -> None:
    async def main() -> None:
        stored = Quantization(method="gptq", bits=4, group_size=128, is_reordered=True)
        config = dataclasses.replace(home.model.config, quantization=stored)
        home.model = dataclasses.replace(home.model, config=config)

        planned = await home.master.plan(PlanRequest(model="big", context=64))
        asked = await home.master.plan(PlanRequest(model="big", context=64, scheme="int8"))

        assert (planned.scheme, planned.note) == ("int8", explain_more_bits(config))
        assert (asked.scheme, asked.note) == ("int8", "")
        assert "(scheme int4) it would take half" in plan_view(planned, epoch=1).explanation

    run(main())


def test_a_model_of_4_bits_with_offsets_is_held_so(home: Home) -> None:
    async def main() -> None:
        layers = range(home.model.config.num_layers)
        stored = Quantization(
            method="gguf",
            bits=4,
            is_symmetric=False,
            higher_precision=frozenset((n, "down") for n in layers),
        )
        config = dataclasses.replace(home.model.config, quantization=stored)
        home.model = dataclasses.replace(home.model, config=config)

        planned = await home.master.plan(PlanRequest(model="big", context=64))

        assert (planned.scheme, planned.note) == ("int4-offset", "")

    run(main())


def test_a_small_model_keeps_its_precision(model: LocalModel) -> None:
    assert schemes_of("auto", model)[0] == "f32"
    assert schemes_of("int4", model) == ("int4",)
