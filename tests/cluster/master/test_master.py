"""Loading a model and unloading it again, when all goes well and when it does not."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from fake_cluster import failing, run, until
from fake_home import SPLIT, TINY, Home
from packing_engine import Workplace

from potluck.api.values.schema import PlanRequest
from potluck.cluster.driver.token import Usage
from potluck.cluster.events import StepRefused
from potluck.cluster.master.vocabulary import Failed
from potluck.errors import (
    BrokenModelError,
    EngineError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    UsageError,
)
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling
from potluck.wire.messages import StepFailed


def test_a_load_says_what_is_being_done(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        home = Home(model, workplace.packing)
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


def test_a_load_puts_the_plan_into_force(home: Home) -> None:
    async def main() -> None:
        deployment = await home.master.load(SPLIT)

        assert home.stages == ["Desk", "Laptop"]
        assert home.master.is_ready
        assert home.master.state.phase == "ready"
        assert deployment.planned.context == 64
        assert home.changes > 5

    run(main())


def test_a_computer_that_lends_more_again_lacks_memory_no_more(home: Home) -> None:
    async def main() -> None:
        full = Failed(error=OutOfMemoryError("It is full."), node_id=home.laptop.node_id)
        home.master.shortages.heard(full, ())
        device = home.laptop.devices[0]
        home.laptop.devices = [msgspec.structs.replace(device, memory_free=0)]
        home.master.weigh()
        assert home.master.shortages.nodes
        before = home.changes

        home.laptop.devices = [device]
        home.master.weigh()

        assert not home.master.shortages.nodes
        assert home.changes == before + 1

    run(main())


def test_what_is_loaded_as_asked_is_not_loaded_again(home: Home) -> None:
    async def main() -> None:
        first = await home.master.load(SPLIT)

        assert await home.master.load(SPLIT) is first
        assert home.desk.calls.count("load") == 1
        assert await home.master.load(SPLIT, anew=True) is not first
        assert home.desk.calls.count("load") == 2

    run(main())


def test_another_request_takes_the_first_ones_place(home: Home) -> None:
    async def main() -> None:
        first = await home.master.load(SPLIT)
        second = await home.master.load(PlanRequest(layers=(("Desk", 4),), context=64))

        assert second.epoch > first.epoch
        assert first.pipeline is not None
        assert first.pipeline.broken is not None
        await until(lambda: "unload" in home.laptop.calls)  # no conversation needs it
        assert home.stages == ["Desk"]

    run(main())


def test_two_loads_at_once_come_one_after_the_other(home: Home) -> None:
    async def main() -> None:
        alone = PlanRequest(layers=(("Desk", 4),), context=64)
        first, second = await asyncio.gather(home.master.load(SPLIT), home.master.load(alone))

        assert home.master.deployment is second
        assert second.epoch == first.epoch + 1
        assert home.master.is_ready

    run(main())


def test_what_was_asked_during_a_load_runs_after_it(home: Home) -> None:
    async def main() -> None:
        home.laptop.gates["load"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: "load" in home.laptop.calls)
        asking = asyncio.create_task(home.master.ready(PlanRequest()))
        home.laptop.gates["load"].set()

        deployment = await loading
        assert (await asking)[0] is deployment
        assert home.opened == [Path("guide")]

    run(main())


def test_a_load_that_is_cancelled_leaves_nothing_loaded(home: Home) -> None:
    async def main() -> None:
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
    home: Home,
) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        home.laptop.gates["unload"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(TINY))
        await until(lambda: "unload" in home.laptop.calls)
        loading.cancel()
        home.laptop.gates["unload"].set()
        await asyncio.wait([loading])

        assert home.master.deployment is None
        assert home.master.state.phase is None
        assert home.master.request is None

    run(main())


@pytest.mark.parametrize("call", ["assign", "send_weights", "load", "connect"])
def test_a_load_that_fails_leaves_nothing_loaded_and_says_why(home: Home, call: str) -> None:
    async def main() -> None:
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


def test_a_broken_model_is_an_error_before_anything_is_sent(home: Home) -> None:
    async def main() -> None:
        home.open_error = BrokenModelError("a shard is missing")
        with pytest.raises(BrokenModelError):
            await home.master.load(SPLIT)

        assert home.desk.calls == home.laptop.calls == []
        assert home.master.state.error is home.open_error

    run(main())


def test_a_fault_of_our_own_is_not_shown_as_a_load_that_goes_on(home: Home) -> None:
    async def main() -> None:
        home.laptop.errors["load"] = [ZeroDivisionError()]
        with pytest.raises(ZeroDivisionError):
            await home.master.load(SPLIT)

        assert home.master.deployment is None
        assert home.master.state.phase is None

    run(main())


def test_unloading_frees_everyone_and_forgets_what_was_asked(home: Home) -> None:
    async def main() -> None:
        deployment = await home.master.load(SPLIT)
        await home.master.unload()

        assert home.master.request is None
        assert home.master.state.phase is None
        assert not home.desk.is_loaded
        assert not home.laptop.is_loaded
        assert deployment.pipeline is not None
        assert isinstance(deployment.pipeline.broken, PeerLostError)

    run(main())


def test_an_answer_under_way_ends_when_the_model_is_unloaded(home: Home) -> None:
    async def main() -> None:
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


def test_a_step_that_a_stage_could_not_do_reaches_who_waits_for_it(home: Home) -> None:
    async def main() -> None:
        failure = StepFailed(
            epoch=1, session="s", step=1, kind="out_of_memory", message="Laptop has no memory."
        )
        home.master.step_refused(refused(home, failure))  # nothing is loaded: nobody waits
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
        failure = msgspec.structs.replace(
            failure, epoch=deployment.epoch, session=forward.session, step=forward.step
        )
        home.master.step_refused(refused(home, failure))

        with pytest.raises(PotluckError, match="no memory"):
            await answering
        assert home.master.is_ready
        await session.aclose()

    run(main())


def refused(home: Home, failure: StepFailed) -> StepRefused:
    return StepRefused(failure=failure, node_id=home.laptop.node_id)


def test_after_a_failed_load_no_other_model_answers_in_its_place(home: Home) -> None:
    async def main() -> None:
        for _ in range(2):
            home.desk.errors["profile"] = failing(
                EngineError("The compute process is not running.")
            )
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


def test_a_shape_is_loaded_without_files_and_nothing_is_sent(home: Home) -> None:
    async def main() -> None:
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


def test_what_is_borrowed_gives_way_to_what_was_there_before(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        async with home.master.borrowed(TINY):
            await home.master.load(TINY)
            assert home.master.request == TINY
        assert home.master.deployment is None
        assert home.master.state.phase is None

        deployment, _ = await home.master.ready(PlanRequest())
        assert deployment.planned.model is home.model
        assert home.stages == ["Desk", "Laptop"]

    run(main())


def test_what_could_not_be_borrowed_leaves_what_was_there(home: Home) -> None:
    async def main() -> None:
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
        assert (await home.master.ready(PlanRequest()))[0].planned.model is home.model

    run(main())


def test_what_was_loaded_already_stays_when_it_was_borrowed(home: Home) -> None:
    async def main() -> None:
        before = await home.master.load(SPLIT)
        async with home.master.borrowed(SPLIT):
            await home.master.load(SPLIT)
        assert home.master.deployment is before

    run(main())


def test_what_somebody_else_loaded_meanwhile_stays(home: Home) -> None:
    async def main() -> None:
        async with home.master.borrowed(TINY):
            await home.master.load(TINY)
            others = await home.master.load(SPLIT)
        assert home.master.deployment is others
        assert home.master.request == SPLIT

    run(main())


def test_a_model_is_looked_for_off_the_event_loop(model: LocalModel) -> None:
    """The Hub's cache may be on a disk that sleeps; heartbeats must go on meanwhile."""
    threads: list[threading.Thread] = []

    def resolve(query: str | None) -> Path:
        threads.append(threading.current_thread())
        return Path("guide")

    async def main() -> None:
        home = Home(model, resolve=resolve)
        await home.master.plan(SPLIT)
        await home.master.load(SPLIT)

    run(main())

    assert len(threads) == 2
    assert threading.main_thread() not in threads
