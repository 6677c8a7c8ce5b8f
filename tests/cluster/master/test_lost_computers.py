"""What a master does without the computers that it loses, and when they are back."""

import asyncio
from pathlib import Path

import pytest
from fake_cluster import FakeComputer, devices, failing, run, until
from fake_home import SPLIT, Home, small

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.errors import InvalidLayersError, NotEnoughMemoryError, PeerLostError
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel


def test_a_stage_process_that_dies_is_named_with_its_device(home: Home) -> None:
    async def main() -> None:
        home.desk.devices = devices("cuda", "cpu", "cpu")
        layers = (("Desk", 2), ("Desk/cpu:1", 2))
        deployment = await home.master.load(PlanRequest(layers=layers, context=64))
        gpu, unused, cpu = (device.id for device in home.desk.devices)

        home.lose_stage(unused)
        assert home.master.is_ready
        assert home.use.own == {gpu, cpu}
        home.lose_stage(cpu)
        assert deployment.pipeline is not None
        assert "Desk/cpu:1 lost its compute process" in str(deployment.pipeline.broken)
        await home.master.ready(PlanRequest())
        assert home.stages == ["Desk", "Desk"]

    run(main())


def test_a_lost_computer_breaks_what_runs_and_is_named(home: Home) -> None:
    async def main() -> None:
        deployment = await home.master.load(SPLIT)
        home.lose_laptop()

        assert not home.master.is_ready
        assert deployment.pipeline is not None
        assert "Laptop" in str(deployment.pipeline.broken)
        assert home.notices == ["Laptop stopped answering. Potluck goes on without it."]

    run(main())


def test_a_lost_computer_without_layers_is_no_matter(home: Home) -> None:
    async def main() -> None:
        home.lose(home.laptop)
        await home.master.load(PlanRequest(layers=(("Desk", 4),), context=64))
        home.lose(home.laptop)

        assert home.master.is_ready
        assert home.notices == []

    run(main())


def test_the_next_prompt_runs_on_who_is_left(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.lose_laptop()
        _, generator = await home.master.ready(PlanRequest())

        assert home.stages == ["Desk"]
        assert generator.broken is None
        assert home.master.request == SPLIT

    run(main())


def test_layers_stay_where_they_are_after_a_loss_that_no_answer_waits_for(home: Home) -> None:
    async def main() -> None:
        attic = FakeComputer("Attic", 3)
        home.computers.workers.append(attic)
        memory = shape_of(home.model.config, "int8", context=64).model_memory
        for computer in (home.desk, home.laptop, attic):
            computer.devices = (small(computer, memory - 1),)
        before = (("Laptop", 2), ("Attic", 1), ("Desk", 1))
        await home.master.load(PlanRequest(layers=before, context=64, scheme="int8"))
        home.computers.workers.remove(attic)
        home.lose(attic)
        await home.master.ready(PlanRequest())

        assert home.stages == ["Laptop", "Desk"]

    run(main())


def test_a_computer_that_is_back_is_used_by_the_next_load(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.lose_laptop()
        await home.master.ready(PlanRequest())
        without = home.master.deployment
        assert await home.master.load(SPLIT) is without
        await home.computers.come(home.laptop)
        again = await home.master.load(SPLIT)

        assert again is not without
        assert home.stages == ["Desk", "Laptop"]
        assert await home.master.load(SPLIT) is again

    run(main())


def test_a_computer_that_is_back_before_the_next_prompt_gets_its_layers_again(
    home: Home,
) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.lose_laptop()
        await home.computers.come(home.laptop)
        await home.master.ready(PlanRequest())

        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_an_engine_that_died_here_gets_its_layers_again(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.lose_stage(home.desk.devices[0].id)
        assert not home.master.is_ready
        await home.master.ready(PlanRequest())

        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_when_who_is_left_is_not_enough_no_other_model_answers_instead(home: Home) -> None:
    async def main() -> None:
        asked = PlanRequest(model="big", scheme="f32", workers=1, context=64)
        home.desk.devices = (small(home.desk, 60_000),)
        home.laptop.devices = (small(home.laptop, 200_000),)
        await home.master.load(asked)
        home.lose_laptop()
        for _ in range(2):
            with pytest.raises(NotEnoughMemoryError):
                await home.master.ready(PlanRequest())

        assert set(home.opened) == {Path("big")}
        await home.computers.come(home.laptop)
        await home.master.ready(PlanRequest())
        assert "Laptop" in home.stages

    run(main())


def test_a_computer_lost_while_it_receives_fails_the_load(home: Home) -> None:
    async def main() -> None:
        home.desk.gates["load"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: home.laptop.is_loaded and "load" in home.desk.calls)
        home.lose_laptop()
        home.desk.gates["load"].set()

        with pytest.raises(PeerLostError, match="Laptop"):
            await loading
        assert home.master.deployment is None
        assert not home.desk.is_loaded

    run(main())


def test_a_computer_that_leaves_while_it_is_measured_is_planned_without(
    home: Home,
) -> None:
    async def main() -> None:
        home.laptop.errors["profile"] = failing(PeerLostError("gone"))
        await home.master.load(PlanRequest(context=64))

        assert home.stages == ["Desk"]

    run(main())


def test_a_load_waits_for_a_computer_that_it_names_and_that_leaves_meanwhile(
    model: LocalModel,
) -> None:
    async def main() -> None:
        home = Home(model, deadlines=PlanningDeadlines(names_s=0.05))
        for is_back in (True, False):
            home.desk.gates["measure_link_to"] = asyncio.Event()
            home.master.measurements.links.forget(home.laptop.node_id)
            loading = asyncio.create_task(home.master.load(SPLIT, anew=True))
            calls = home.desk.calls.count("measure_link_to")
            await until(lambda calls=calls: home.desk.calls.count("measure_link_to") > calls)
            home.computers.workers.clear()
            home.desk.gates.pop("measure_link_to").set()
            if is_back:
                await asyncio.sleep(0)
                await home.computers.come(home.laptop)
                await loading
                assert home.stages == ["Desk", "Laptop"]
            else:
                with pytest.raises(InvalidLayersError, match="not here"):
                    await loading

    run(main())


def test_a_load_says_at_once_who_has_the_computer_that_it_names(home: Home) -> None:
    async def main() -> None:
        home.computers.workers.clear()
        home.computers.reasons = {"Laptop": "helps Attic just now"}

        with pytest.raises(InvalidLayersError, match="Laptop helps Attic just now"):
            await home.master.load(SPLIT)

    run(main())
