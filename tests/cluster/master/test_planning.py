"""Who is waited for, and what a plan is made of."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fake_cluster import FakeComputer, devices, failing, run, until
from fake_home import SPLIT, Home, small

from potluck.api.values.schema import PlanRequest
from potluck.cluster.driver.token import Usage
from potluck.cluster.master.asked import schemes_of
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.cluster.master.planning import Planner
from potluck.cluster.master.searching import search_in_thread
from potluck.cluster.views import plan_view
from potluck.errors import (
    EngineError,
    InvalidLayersError,
    NotEnoughMemoryError,
    PeerLostError,
    UsageError,
)
from potluck.model.shapes.table import SHAPES
from potluck.plan.search import Stop
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel, random_model
from potluck.wire.activation_messages import Sampling

BOTH = PlanRequest(workers=1, context=64)


def test_a_plan_changes_nothing(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        planned = await home.master.plan(BOTH)

        assert planned.plan.stages
        assert set(planned.names.values()) == {"Desk", "Laptop"}
        assert home.master.state.phase == "ready"
        assert home.master.request == SPLIT
        assert home.master.is_ready

    run(main())


@pytest.mark.parametrize("layers", [None, (("Desk+Laptop", 4),)])
def test_what_sums_take_is_measured_for_the_groups_that_may_pay_or_are_asked_for(
    home: Home, layers: tuple[tuple[str, int], ...] | None
) -> None:
    async def main() -> None:
        for computer in (home.desk, home.laptop):
            computer.sum_ms = (3.0, 30.0)
        planned = await home.master.plan(PlanRequest(context=64, scheme="f32", layers=layers))

        assert home.desk.calls.count("measure_sums") == home.laptop.calls.count("measure_sums") == 1
        assert len(home.master.measurements.sums.known()) == 1
        (stage, *others) = planned.plan.stages
        if layers is None:
            assert not stage.is_ranked
            assert (
                "do not compute layers together: a layer would take them"
                in planned.plan.explanation
            )
        else:
            assert [other.rank for other in others] == [1]
            assert stage.predicted_ms - stage.head_ms > 4 * 2 * 2.9

    run(main())


def test_no_sums_are_measured_while_people_read_answers(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.desk.calls.clear()
        _, generator = await home.master.ready(PlanRequest())
        stream = generator.tokens([1, 2, 3], Sampling(), usage=Usage())
        await anext(stream)
        asked = PlanRequest(context=64, scheme="f32", layers=(("Desk+Laptop", 4),))
        await home.master.plan(asked)
        assert "measure_sums" not in home.desk.calls
        await stream.aclose()
        await home.master.plan(asked)
        assert "measure_sums" in home.desk.calls

    run(main())


def test_nothing_is_measured_of_groups_that_cannot_pay(home: Home) -> None:
    async def main() -> None:
        home.desk.link = replace(home.desk.link, rtt_ms=30.0)
        await home.master.plan(PlanRequest(context=64, scheme="f32"))
        await home.master.plan(PlanRequest(context=64, scheme="f32", layers=(("Desk", 4),)))

        assert "measure_sums" not in home.desk.calls

    run(main())


def test_a_device_that_cannot_be_measured_is_said_with_the_plan(home: Home) -> None:
    async def main() -> None:
        home.laptop.devices = devices("cuda", "cpu")
        home.laptop.errors["profile"] = failing(EngineError("No driver."))
        planned = await home.master.plan(PlanRequest(context=64, scheme="f32"))
        assert planned.note == "Laptop/cuda:0 is left out: No driver."

    run(main())


def test_a_context_beyond_the_training_is_cut_with_a_warning(home: Home) -> None:
    async def main() -> None:
        trained = home.model.config.max_position
        for asked, warnings in ((trained, 0), (trained + 1, 1), (None, 0)):
            planned = await home.master.plan(PlanRequest(context=asked, scheme="f32"))

            assert planned.context == trained
            assert len(planned.warnings) == warnings
            for warning in planned.warnings:
                assert f"was trained for {trained} tokens" in warning
                assert (
                    f"not with {asked}: beyond them its answers would lose their sense" in warning
                )
                assert warning in plan_view(planned, epoch=0).explanation
                assert plan_view(planned, epoch=0).warnings == planned.warnings

    run(main())


def test_a_computer_that_helps_another_home_is_said_with_the_plan(home: Home) -> None:
    async def main() -> None:
        home.computers.workers.clear()
        home.computers.reasons["Laptop"] = "helps Tower just now"
        planned = await home.master.plan(PlanRequest(context=64, scheme="f32"))
        assert planned.note == "Laptop is left out: it helps Tower just now."

    run(main())


def test_a_computer_that_is_lost_while_it_is_measured_is_named_with_why(home: Home) -> None:
    async def main() -> None:
        home.laptop.errors["profile"] = failing(PeerLostError("Laptop closed the connection."))
        with pytest.raises(
            InvalidLayersError, match=r"Laptop is left out: Laptop closed the connection\."
        ):
            await home.master.plan(SPLIT)

    run(main())


def test_a_device_is_waited_for_by_its_computers_name(home: Home) -> None:
    async def main() -> None:
        home.laptop.devices = devices("cuda", "cpu")
        home.computers.workers.clear()
        layers = (("desk/cpu", 2), ("Laptop/cpu", 2))
        planning = asyncio.create_task(home.master.plan(PlanRequest(layers=layers, context=64)))
        await until(lambda: home.opened)
        await home.computers.come(home.laptop)
        assert [stage.device for stage in (await planning).plan.stages] == ["cpu", "cpu"]

    run(main())


def test_workers_asked_for_by_number_are_waited_for(home: Home) -> None:
    async def main() -> None:
        home.computers.workers.clear()
        loading = asyncio.create_task(home.master.load(BOTH))
        await until(lambda: home.master.state.phase == "waiting")
        await home.computers.come(home.laptop)

        deployment = await loading
        assert deployment.uses(home.laptop.node_id)

    run(main())


def test_workers_that_do_not_come_are_an_error_that_says_who_did(model: LocalModel) -> None:
    home = Home(model, deadlines=PlanningDeadlines(workers_s=0.0))

    async def main() -> None:
        with pytest.raises(UsageError, match=r"2 other computers.*Laptop"):
            await home.master.load(PlanRequest(workers=2))

    run(main())


def test_a_name_that_is_not_here_is_an_error_that_says_who_is(model: LocalModel) -> None:
    home = Home(model, deadlines=PlanningDeadlines(names_s=0.0))

    async def main() -> None:
        with pytest.raises(InvalidLayersError, match=r"Laptop.*Desk"):
            await home.master.load(PlanRequest(layers=(("Toaster", 4),)))

    run(main())


def test_layers_that_do_not_add_up_are_refused_before_anybody_is_waited_for(home: Home) -> None:
    async def main() -> None:
        layers = (("Desk", 2), ("Toaster", 1))
        for ask in (home.master.plan, home.master.load):
            with pytest.raises(InvalidLayersError, match=r"has 4 layers, .* add up to 3"):
                await ask(PlanRequest(layers=layers, context=64))
        assert not home.desk.calls

    run(main())


def test_a_node_that_just_started_gives_the_others_a_moment(home: Home) -> None:
    async def main() -> None:
        home.computers.workers.clear()
        home.computers.absent = 1
        planning = asyncio.create_task(home.master.plan(PlanRequest(context=64)))
        await until(lambda: home.opened)
        await asyncio.sleep(0)
        assert not home.desk.calls
        home.computers.absent = 0
        await home.computers.come(home.laptop)

        assert set((await planning).names.values()) == {"Desk", "Laptop"}

    run(main())


def test_it_does_not_wait_for_ever_for_computers_that_are_off(model: LocalModel) -> None:
    home = Home(model, deadlines=PlanningDeadlines(settle_s=0.0))

    async def main() -> None:
        home.computers.workers.clear()
        home.computers.absent = 1
        assert (await home.master.plan(PlanRequest(context=64))).plan.stages[0].name == "Desk"

    run(main())


class CountingExecutor(ThreadPoolExecutor):
    """The threads of the event loop; knows what they were given."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.submitted = 0

    def submit(self, *args: Any, **named: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(*args, **named)


def test_what_fits_and_who_computes_is_searched_in_a_thread(home: Home) -> None:
    async def main() -> None:
        threads = CountingExecutor()
        asyncio.get_running_loop().set_default_executor(threads)

        await home.master.plan(PlanRequest(context=64, scheme="f32"))

        assert threads.submitted == 3  # where the model is; what fits; who computes

    run(main())


def test_the_loop_turns_while_a_plan_is_searched() -> None:
    async def main() -> None:
        has_turned = threading.Event()
        asyncio.get_running_loop().call_later(0, has_turned.set)

        assert await search_in_thread(lambda stop: has_turned.wait(timeout=10), limit_s=60.0)

    run(main())


def test_a_search_that_nobody_waits_for_any_more_is_stopped() -> None:
    async def main() -> None:
        started, ended = threading.Event(), threading.Event()

        def search(stop: Stop) -> None:
            started.set()
            while not stop():
                pass
            ended.set()

        searching = asyncio.create_task(search_in_thread(search, limit_s=60.0))
        await asyncio.to_thread(started.wait, 10)
        searching.cancel()

        assert await asyncio.to_thread(ended.wait, 10)

    run(main())


def test_a_search_is_stopped_at_its_time_limit() -> None:
    async def main() -> None:
        assert await search_in_thread(lambda stop: stop(), limit_s=0.0)
        assert not await search_in_thread(lambda stop: stop(), limit_s=60.0)

    run(main())


def test_a_device_without_bf16_has_room_for_half_as_many_layers_of_a_model_that_needs_it(
    home: Home,
) -> None:
    async def main() -> None:
        memory = shape_of(home.model.config, "bf16", context=64).model_memory
        request = PlanRequest(context=64, scheme="bf16")
        for computer in (home.desk, home.laptop):
            computer.devices = devices("cuda")
            computer.devices = (small(computer, memory),)

        home.desk.is_wide = home.laptop.is_wide = True
        split = await home.master.plan(request)
        assert sorted(stage.name for stage in split.plan.stages) == ["Desk", "Laptop"]

    run(main())


def test_an_engine_that_is_just_starting_is_waited_for_before_anything_is_measured(
    home: Home,
) -> None:
    async def main() -> None:
        there, home.desk.devices = (small(home.desk, 1),), ()
        home.laptop.devices = (small(home.laptop, 1),)
        home.desk.gates["look"] = asyncio.Event()
        planning = asyncio.create_task(home.master.plan(PlanRequest(context=64, scheme="f32")))
        await until(lambda: home.desk.calls)
        home.desk.devices = there
        home.desk.gates["look"].set()

        with pytest.raises(NotEnoughMemoryError):
            await planning
        assert home.desk.calls == ["look"]

    run(main())


def recovering(home: Home) -> tuple[FakeComputer, Callable[..., Coroutine[Any, Any, list[str]]]]:
    """Return another computer, and what plans a recovery: the model needs two of three computers."""
    attic = FakeComputer("Attic", 3, ms=9.0)  # so it is not taken if another one may be
    planner = Planner(home.computers, home.models, PlanningDeadlines(return_s=0.0))
    request = PlanRequest(context=64, scheme="int8")
    memory = shape_of(home.model.config, "int8", context=64).model_memory
    for computer in (home.desk, home.laptop, attic):
        computer.devices = (small(computer, memory - 1),)

    async def recover(*avoid: FakeComputer) -> list[str]:
        avoided = frozenset(computer.node_id for computer in avoid)
        planned = await planner.plan(request, settle=False, is_recovery=True, avoid=avoided)
        return sorted(stage.name for stage in planned.plan.stages)

    return attic, recover


def test_a_recovery_takes_those_that_were_measured(home: Home) -> None:
    async def main() -> None:
        attic, recover = recovering(home)
        assert await recover() == ["Desk", "Laptop"]
        await home.computers.come(attic)

        assert await recover() == ["Desk", "Laptop"]
        assert attic.calls == []

    run(main())


def test_a_recovery_measures_who_was_not_rather_than_take_one_to_be_avoided(home: Home) -> None:
    async def main() -> None:
        attic, recover = recovering(home)
        await recover()
        await home.computers.come(attic)

        assert await recover(home.laptop) == ["Attic", "Desk"]
        assert "profile" in attic.calls

    run(main())


def test_a_recovery_takes_one_to_be_avoided_if_the_model_does_not_fit_without(home: Home) -> None:
    async def main() -> None:
        attic, recover = recovering(home)
        attic.devices = (small(attic, 1),)
        await home.computers.come(attic)

        assert await recover(home.laptop) == ["Desk", "Laptop"]
        assert await recover(home.laptop, attic) == ["Desk", "Laptop"]

    run(main())


def test_a_recovery_does_not_wait_for_one_that_is_just_starting(home: Home) -> None:
    async def main() -> None:
        attic, recover = recovering(home)
        await recover()
        attic.devices = ()
        await home.computers.come(attic)

        assert await recover() == ["Desk", "Laptop"]
        assert attic.calls == []

    run(main())


def test_a_shape_is_planned_as_files_of_16_bits_would_be() -> None:
    assert schemes_of("auto", random_model("llama-1b", SHAPES["llama-1b"]))[0] == "bf16"


def test_a_shape_that_nobody_knows_is_answered_with_those_there_are(home: Home) -> None:
    async def main() -> None:
        for attempt in (home.master.load, home.master.plan):
            with pytest.raises(UsageError, match="tiny"):
                await attempt(PlanRequest(shape="llama-9000b"))

    run(main())
