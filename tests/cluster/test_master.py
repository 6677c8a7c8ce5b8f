import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fake_cluster import FakeComputer, FakeComputers, devices, failing, run, until
from model_folders import CONFIG
from packing_engine import Workplace

from potluck.api.openai import StageTiming, Timings
from potluck.api.schema import PlanRequest
from potluck.cluster.generation import Usage
from potluck.cluster.master import Master, without_constraints
from potluck.cluster.planning import schemes_of
from potluck.cluster.quantisation import Quantisation
from potluck.cluster.survey import shape_of
from potluck.errors import (
    BrokenModelError,
    EngineError,
    InvalidLayersError,
    NotEnoughMemoryError,
    PeerLostError,
    PotluckError,
    UsageError,
)
from potluck.model.config import ModelConfig
from potluck.model.footprint import working_bytes
from potluck.model.shapes import SHAPES
from potluck.store.registry import LocalModel, random_model
from potluck.wire.messages import DeviceInfo, Sampling, StepFailed

SPLIT = PlanRequest(layers=(("Desk", 2), ("Laptop", 2)), context=64)
BOTH = PlanRequest(workers=1, context=64)


class Home:
    """A master with a desk and a laptop."""

    def __init__(self, model: LocalModel, quantisation: Quantisation | None = None) -> None:
        self.model = model
        self.desk, self.laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        self.desk.stores_weights = True
        self.computers = FakeComputers(self.desk, self.laptop)
        self.changes = 0
        self.opened: list[Path] = []
        self.open_error: BaseException | None = None
        self.master = Master(
            computers=self.computers,
            open_model=self._open,
            resolve=lambda words: Path(words or "guide"),
            changed=self._changed,
            quantisation=quantisation,
            shapes={"tiny": {**CONFIG, "num_hidden_layers": 4}},
        )
        self.states: list[tuple[str | None, str]] = []

    async def _open(self, folder: Path, progress: Callable[[int, int], None]) -> LocalModel:
        self.opened.append(folder)
        progress(1, 2)
        if self.open_error is not None:
            raise self.open_error
        return self.model

    def _changed(self) -> None:
        self.changes += 1
        state = (self.master.state.phase, self.master.state.message)
        if state not in self.states:
            self.states.append(state)

    def lose_laptop(self) -> None:
        self.computers.workers.remove(self.laptop)
        self.laptop.errors["unload"] = failing(PeerLostError("gone"))
        assert self.master.lost(self.laptop.node_id, "Laptop", "stopped answering")

    @property
    def stages(self) -> list[str]:
        deployment = self.master.deployment
        return [] if deployment is None else [s.name for s in deployment.planned.plan.stages]


def test_a_load_says_what_is_being_done(model: LocalModel, tmp_path: Path) -> None:
    async def main() -> None:
        with Workplace(tmp_path) as workplace:
            home = Home(model, workplace.quantisation)
            await home.master.load(msgspec.structs.replace(SPLIT, scheme="int4"))

            phases = [phase for phase, _ in home.states]
            assert list(dict.fromkeys(phases)) == [
                "hashing", "waiting", "planning", "quantising", "streaming", "loading", "ready",
            ]  # fmt: skip
            messages = [message for _, message in home.states]
            assert f"Quantising {model.name} to int4" in messages
            assert any(message.startswith(f"Sending {model.name}, ") for message in messages)
            assert f"Loading {model.name}" in messages

    run(main())


def test_a_plan_changes_nothing(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        planned = await home.master.plan(BOTH)

        assert planned.plan.stages
        assert set(planned.names.values()) == {"Desk", "Laptop"}
        assert home.master.state.phase == "ready"
        assert home.master.request == SPLIT
        assert home.master.is_ready

    run(main())


def test_a_load_puts_the_plan_into_force(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        deployment = await home.master.load(SPLIT)

        assert home.stages == ["Desk", "Laptop"]
        assert home.master.is_ready
        assert home.master.state.phase == "ready"
        assert deployment.planned.context == 64
        assert home.changes > 5

    run(main())


def test_a_stage_process_that_dies_is_named_with_its_device(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.desk.devices = devices("cuda", "cpu", "cpu")
        layers = (("Desk", 2), ("Desk/cpu:1", 2))
        deployment = await home.master.load(PlanRequest(layers=layers, context=64))
        gpu, unused, cpu = (device.id for device in home.desk.devices)

        assert not home.master.stage_died(unused)
        assert home.master.is_ready
        assert [home.master.uses(device) for device in (gpu, unused, cpu)] == [True, False, True]
        assert home.master.stage_died(cpu)
        assert deployment.pipeline is not None
        assert "Desk/cpu:1 lost its engine" in str(deployment.pipeline.broken)
        await home.master.ready(PlanRequest())
        assert home.stages == ["Desk", "Desk"]

    run(main())


def test_a_device_that_cannot_be_measured_is_said_with_the_plan(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.devices = devices("cuda", "cpu")
        home.laptop.errors["profile"] = failing(EngineError("No driver."))
        planned = await home.master.plan(PlanRequest(context=64, scheme="f32"))
        assert planned.note == "Laptop/cuda:0 is left out: No driver."

    run(main())


def test_a_device_is_waited_for_by_its_computers_name(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.devices = devices("cuda", "cpu")
        home.computers.workers.clear()
        layers = (("desk/cpu", 2), ("Laptop/cpu", 2))
        planning = asyncio.create_task(home.master.plan(PlanRequest(layers=layers, context=64)))
        await until(lambda: home.opened)
        await home.computers.come(home.laptop)
        assert [stage.device for stage in (await planning).plan.stages] == ["cpu", "cpu"]

    run(main())


def test_what_is_loaded_as_asked_is_not_loaded_again(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        first = await home.master.load(SPLIT)

        assert await home.master.load(SPLIT) is first
        assert home.desk.calls.count("load") == 1

    run(main())


def test_another_request_takes_the_first_ones_place(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        first = await home.master.load(SPLIT)
        second = await home.master.load(PlanRequest(layers=(("Desk", 4),), context=64))

        assert second.epoch > first.epoch
        assert first.pipeline is not None
        assert first.pipeline.broken is not None
        assert "unload" in home.laptop.calls
        assert home.stages == ["Desk"]

    run(main())


def test_two_loads_at_once_come_one_after_the_other(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        alone = PlanRequest(layers=(("Desk", 4),), context=64)
        first, second = await asyncio.gather(home.master.load(SPLIT), home.master.load(alone))

        assert home.master.deployment is second
        assert second.epoch == first.epoch + 1
        assert home.master.is_ready

    run(main())


def test_what_was_asked_during_a_load_runs_after_it(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.gates["load"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: "load" in home.laptop.calls)
        asking = asyncio.create_task(home.master.ready(PlanRequest()))
        home.laptop.gates["load"].set()

        deployment = await loading
        assert (await asking)[0] is deployment
        assert home.opened == [Path("guide")]

    run(main())


def test_a_load_that_is_cancelled_leaves_nothing_loaded(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.gates["load"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: "load" in home.laptop.calls and home.desk.is_loaded)
        loading.cancel()
        await asyncio.wait([loading])

        assert loading.cancelled()
        assert home.master.deployment is None
        assert home.master.state.phase is None
        assert not home.desk.is_loaded
        assert "unload" in home.laptop.calls
        home.laptop.gates.clear()
        await home.master.load(SPLIT)
        assert home.master.is_ready

    run(main())


def test_a_load_that_is_cancelled_while_the_one_before_is_unloaded_leaves_nothing(
    model: LocalModel,
) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        home.laptop.gates["unload"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(PlanRequest(layers=(("Desk", 4),))))
        await until(lambda: "unload" in home.laptop.calls)
        loading.cancel()
        home.laptop.gates.clear()
        await asyncio.wait([loading])

        assert home.master.deployment is None
        assert home.master.state.phase is None
        assert home.master.request is None

    run(main())


@pytest.mark.parametrize("call", ["assign", "send_weights", "load", "connect"])
def test_a_load_that_fails_leaves_nothing_loaded_and_says_why(model: LocalModel, call: str) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.errors[call] = failing(EngineError("Laptop is on fire."))
        with pytest.raises(EngineError, match="on fire"):
            await home.master.load(SPLIT)

        assert home.master.deployment is None
        assert home.master.state.phase == "failed"
        assert "on fire" in home.master.state.message
        assert not home.desk.is_loaded
        await home.master.load(SPLIT)
        assert home.master.is_ready

    run(main())


def test_a_broken_model_is_an_error_before_anything_is_sent(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.open_error = BrokenModelError("a shard is missing")
        with pytest.raises(BrokenModelError):
            await home.master.load(SPLIT)

        assert home.desk.calls == home.laptop.calls == []
        assert home.master.state.error is home.open_error

    run(main())


def test_a_fault_of_our_own_is_not_shown_as_a_load_that_goes_on(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.errors["load"] = [ZeroDivisionError()]
        with pytest.raises(ZeroDivisionError):
            await home.master.load(SPLIT)

        assert home.master.deployment is None
        assert home.master.state.phase is None

    run(main())


def test_unloading_frees_everyone_and_forgets_what_was_asked(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        deployment = await home.master.load(SPLIT)
        await home.master.unload()

        assert home.master.request is None
        assert home.master.state.phase is None
        assert not home.desk.is_loaded
        assert not home.laptop.is_loaded
        assert deployment.pipeline is not None
        assert isinstance(deployment.pipeline.broken, PeerLostError)

    run(main())


def test_an_answer_under_way_ends_when_the_model_is_unloaded(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(PlanRequest(layers=(("Desk", 4),), context=64))
        _, generator = await home.master.ready(PlanRequest())
        home.desk.chains[0].is_silent = True
        stream = generator.tokens([1, 2], Sampling(), limit=2, usage=Usage())
        answering = asyncio.ensure_future(anext(stream))
        await until(lambda: home.desk.chains[0].forwards)
        await home.master.unload()

        with pytest.raises(PeerLostError, match="unloaded"):
            await answering
        await stream.aclose()

    run(main())


# --- waiting


def test_workers_asked_for_by_number_are_waited_for(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.computers.workers.clear()
        loading = asyncio.create_task(home.master.load(BOTH))
        await until(lambda: home.master.state.phase == "waiting")
        await home.computers.come(home.laptop)

        deployment = await loading
        assert deployment.uses(home.laptop.node_id)

    run(main())


def test_workers_that_do_not_come_are_an_error_that_says_who_did(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.planning.WAIT_FOR_WORKERS_S", 0.0)

    async def main() -> None:
        home = Home(model)
        with pytest.raises(UsageError, match=r"2 other computers.*Laptop"):
            await home.master.load(PlanRequest(workers=2))

    run(main())


def test_a_name_that_is_not_here_is_an_error_that_says_who_is(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.planning.WAIT_FOR_NAMES_S", 0.0)

    async def main() -> None:
        home = Home(model)
        with pytest.raises(InvalidLayersError, match=r"Laptop.*Desk"):
            await home.master.load(PlanRequest(layers=(("Toaster", 4),)))

    run(main())


def test_a_node_that_just_started_gives_the_others_a_moment(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
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


def test_it_does_not_wait_for_ever_for_computers_that_are_off(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.planning.SETTLE_S", 0.0)

    async def main() -> None:
        home = Home(model)
        home.computers.workers.clear()
        home.computers.absent = 1
        assert (await home.master.plan(PlanRequest(context=64))).plan.stages[0].name == "Desk"

    run(main())


# --- computers that are lost


def test_a_lost_computer_breaks_what_runs_and_is_named(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        deployment = await home.master.load(SPLIT)
        home.lose_laptop()

        assert not home.master.is_ready
        assert deployment.pipeline is not None
        assert "Laptop" in str(deployment.pipeline.broken)

    run(main())


def test_a_lost_computer_without_layers_is_no_matter(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        assert not home.master.lost(home.laptop.node_id, "Laptop", "stopped answering")
        await home.master.load(PlanRequest(layers=(("Desk", 4),), context=64))

        assert not home.master.lost(home.laptop.node_id, "Laptop", "stopped answering")
        assert home.master.is_ready

    run(main())


def test_the_next_prompt_runs_on_who_is_left(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        home.lose_laptop()
        _, generator = await home.master.ready(PlanRequest())

        assert home.stages == ["Desk"]
        assert generator.pipeline.broken is None
        assert home.master.request == SPLIT

    run(main())


def test_a_computer_that_is_back_is_used_by_the_next_load(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
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
    model: LocalModel,
) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        home.lose_laptop()
        await home.computers.come(home.laptop)
        await home.master.ready(PlanRequest())

        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_an_engine_that_died_here_gets_its_layers_again(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        assert home.master.lost(home.desk.node_id, "Desk", "lost its engine")
        await home.master.ready(PlanRequest())

        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_auto_takes_the_best_quality_that_fits_and_says_why(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        room = shape_of(model.config, "int8", context=64).model_memory
        home.desk.devices = (small(home.desk, room),)
        home.laptop.devices = (small(home.laptop, 1),)
        planned = await home.master.plan(PlanRequest(model="big", context=64))

        assert planned.scheme == "int8"
        assert "In bf16 the model needs" in planned.note
        home.desk.devices = (small(home.desk, 10_000_000),)
        planned = await home.master.plan(PlanRequest(model="big", context=64))
        assert (planned.scheme, planned.note) == ("f32", "")

    run(main())


def test_when_who_is_left_is_not_enough_no_other_model_answers_instead(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
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


def small(computer: FakeComputer, memory: int) -> DeviceInfo:
    """So much for weights and caches, beside what a stage computes with."""
    working = working_bytes(ModelConfig.from_dict(CONFIG), 64)
    return msgspec.structs.replace(computer.devices[0], memory_free=memory + working)


def test_a_computer_lost_while_it_receives_fails_the_load(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
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
    model: LocalModel,
) -> None:
    async def main() -> None:
        home = Home(model)
        home.laptop.errors["profile"] = failing(PeerLostError("gone"))
        await home.master.load(PlanRequest(context=64))

        assert home.stages == ["Desk"]

    run(main())


def test_a_computer_that_leaves_after_it_was_measured_fails_the_load(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.desk.gates["measure_link_to"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: "measure_link_to" in home.desk.calls)
        home.computers.workers.clear()
        home.desk.gates["measure_link_to"].set()

        with pytest.raises(PeerLostError, match="Laptop left"):
            await loading
        assert home.desk.assigned == []

    run(main())


def test_a_step_that_a_stage_could_not_do_reaches_who_waits_for_it(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        failure = StepFailed(
            epoch=1, session="s", step=1, kind="out_of_memory", message="Laptop has no memory."
        )
        home.master.step_failed(home.laptop.node_id, failure)  # nothing is loaded: nobody waits
        deployment = await home.master.load(SPLIT)
        pipeline = deployment.pipeline
        assert pipeline is not None
        home.desk.chains[0].is_silent = True
        session = (await home.master.ready(PlanRequest()))[1].tokens(
            [1, 2], Sampling(), limit=1, usage=Usage()
        )
        answering = asyncio.ensure_future(anext(session))
        await until(lambda: home.desk.chains[0].forwards)
        forward = home.desk.chains[0].forwards[0]
        home.master.step_failed(
            home.laptop.node_id,
            StepFailed(
                epoch=deployment.epoch,
                session=forward.session,
                step=forward.step,
                kind="out_of_memory",
                message="Laptop has no memory.",
            ),
        )

        with pytest.raises(PotluckError, match="no memory"):
            await answering
        assert home.master.is_ready
        await session.aclose()

    run(main())


def test_a_master_learns_from_what_an_answer_took(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        home.master.observe(timings(1.0))  # nothing is loaded
        deployment = await home.master.load(SPLIT)
        stages = deployment.planned.plan.stages
        home.master.observe(timings(1.0))  # of another plan
        home.master.observe(timings(*(3 * stage.predicted_ms for stage in stages)))
        planned = await home.master.plan(SPLIT)

        assert [s.predicted_ms for s in planned.plan.stages] == pytest.approx(
            [2 * s.predicted_ms for s in stages]
        )

    run(main())


def timings(*compute_ms: float) -> Timings:
    return Timings(
        time_to_first_token_s=1.0,
        tokens_per_s=1.0,
        prefill_tokens=1,
        cached_tokens=0,
        stages=tuple(StageTiming(node="x", compute_ms=ms) for ms in compute_ms),
        hop_ms=None,
    )


def test_a_small_model_keeps_its_precision(model: LocalModel) -> None:
    assert schemes_of("auto", model)[0] == "f32"
    assert schemes_of("int4", model) == ("int4",)


def test_without_constraints_the_model_stays_the_same() -> None:
    request = PlanRequest(model="m", scheme="bf16", layers=(("a", 1),), workers=2, context=9)
    assert without_constraints(request) == PlanRequest(model="m", scheme="bf16", context=9)


def test_after_a_failed_load_no_other_model_answers_in_its_place(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        for _ in range(2):
            home.desk.errors["profile"] = failing(EngineError("The engine is not running."))
            with pytest.raises(EngineError):
                await (
                    home.master.load(SPLIT)
                    if home.master.request is None
                    else home.master.ready(PlanRequest())
                )
            assert home.master.request == SPLIT

        await home.master.unload()
        await home.master.ready(PlanRequest())
        assert home.master.request == PlanRequest()

    run(main())


TINY = PlanRequest(shape="tiny", context=64)


def test_a_shape_is_loaded_without_files_and_nothing_is_sent(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        request = PlanRequest(shape="tiny", layers=(("Desk", 2), ("Laptop", 2)), context=64)
        deployment = await home.master.load(request)

        assert home.opened == []
        assert home.stages == ["Desk", "Laptop"]
        assert "send_weights" not in home.laptop.calls
        for computer in (home.desk, home.laptop):
            assert computer.assigned[-1].tensors == ()
            assert computer.assigned[-1].seed is not None
        assert deployment.planned.model.name == "tiny"

    run(main())


def test_a_shape_that_nobody_knows_is_answered_with_those_there_are(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        for attempt in (home.master.load, home.master.plan):
            with pytest.raises(UsageError, match="tiny"):
                await attempt(PlanRequest(shape="llama-9000b"))

    run(main())


def test_a_shape_is_planned_as_files_of_16_bits_would_be() -> None:
    assert schemes_of("auto", random_model("llama-1b", SHAPES["llama-1b"]))[0] == "bf16"


def test_what_is_borrowed_gives_way_to_what_was_there_before(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        await home.master.load(SPLIT)
        async with home.master.borrowed(TINY):
            await home.master.load(TINY)
            assert home.master.request == TINY
        assert home.master.deployment is None
        assert home.master.state.phase is None

        deployment, _ = await home.master.ready(PlanRequest())
        assert deployment.planned.model is model
        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_what_could_not_be_borrowed_leaves_what_was_there(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        before = await home.master.load(SPLIT)
        home.laptop.errors["assign"] = [EngineError("No.")]
        nowhere, broken = (
            PlanRequest(shape="nowhere"),
            PlanRequest(shape="tiny", layers=SPLIT.layers),
        )
        with pytest.raises(UsageError):
            async with home.master.borrowed(nowhere):
                await home.master.load(nowhere)
        assert home.master.deployment is before
        with pytest.raises(EngineError):
            async with home.master.borrowed(broken):
                await home.master.load(broken)

        assert home.master.state.error is None
        assert (await home.master.ready(PlanRequest()))[0].planned.model is model

    run(main())


def test_what_was_loaded_already_stays_when_it_was_borrowed(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        before = await home.master.load(SPLIT)
        async with home.master.borrowed(SPLIT):
            await home.master.load(SPLIT)
        assert home.master.deployment is before

    run(main())


def test_what_somebody_else_loaded_meanwhile_stays(model: LocalModel) -> None:
    async def main() -> None:
        home = Home(model)
        async with home.master.borrowed(TINY):
            await home.master.load(TINY)
            others = await home.master.load(SPLIT)
        assert home.master.deployment is others
        assert home.master.request == SPLIT

    run(main())
