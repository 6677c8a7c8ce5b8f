"""Computers that join while a model is loaded."""

import asyncio

import pytest
from fake_cluster import FakeComputer, failing, run, until
from fake_home import SPLIT, Home

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import DeviceChanged, LinkChanged
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.errors import EngineError
from potluck.plan.cost import LinkCost
from potluck.store.registry import LocalModel
from potluck.wire.versions import RANKS_SINCE

ANY = PlanRequest(context=64)


@pytest.fixture
def home(model: LocalModel) -> Home:
    """The laptop is fast, and away."""
    home = Home(model, deadlines=PlanningDeadlines(improve_s=0.0, settle_s=0.0))
    home.desk._ms, home.laptop._ms = 1000.0, 1.0
    home.computers.workers.clear()
    return home


async def weighed(home: Home, *computers: FakeComputer) -> None:
    """These computers come, and the plan in force was weighed with them."""
    await home.computers.come(*computers)
    home.master.weigh()
    await until(lambda: not home.master._weighing.is_under_way)


def test_a_fast_computer_that_comes_is_used_at_once(home: Home) -> None:
    async def main() -> None:
        await home.master.load(ANY)
        assert home.stages == ["Desk"]
        await weighed(home, home.laptop)

        assert home.stages == ["Laptop"]
        assert home.master.is_ready
        assert "planning" not in [
            phase for phase, _ in home.states[home.states.index(("ready", "Ready")) :]
        ]

    run(main())


def test_its_weights_are_sent_while_the_plan_before_goes_on(home: Home) -> None:
    async def main() -> None:
        home.laptop.gates["send_weights"] = asyncio.Event()
        await home.master.load(ANY)
        before = home.master.deployment
        await home.computers.come(home.laptop)
        home.master.weigh()
        await until(lambda: "send_weights" in home.laptop.calls)

        _, generator = await home.master.ready(ANY)  # a prompt is answered beside it
        assert home.master.deployment is before
        assert generator.broken is None
        home.laptop.gates["send_weights"].set()
        await until(lambda: not home.master._weighing.is_under_way)
        assert home.stages == ["Laptop"]
        assert home.laptop.calls.count("send_weights") == 1

    run(main())


def test_it_loads_its_layers_while_the_plan_before_goes_on(home: Home) -> None:
    async def main() -> None:
        home.laptop.gates["load"] = asyncio.Event()
        await home.master.load(ANY)
        before = home.master.deployment
        await home.computers.come(home.laptop)
        home.master.weigh()
        await until(lambda: "load" in home.laptop.calls)

        assert home.master.deployment is before
        assert home.master.is_ready
        home.laptop.gates["load"].set()
        await until(lambda: not home.master._weighing.is_under_way)
        assert home.stages == ["Laptop"]

    run(main())


def test_this_computer_too_is_ready_before_the_plans_change(home: Home) -> None:
    """Its stage process may have died, and be known from before while it starts again."""

    async def main() -> None:
        await home.computers.come(home.laptop)
        await home.master.load(ANY)
        assert home.stages == ["Laptop"]
        home.desk._ms = 0.001
        home.master.measurements.forget_profiles(home.desk.node_id)
        home.master.happened(DeviceChanged(node_id=home.desk.node_id))
        home.desk.calls.clear()
        await weighed(home)

        assert home.stages == ["Desk"]
        assert home.desk.calls.count("load") == 2  # beside the plan before, and for its own

    run(main())


@pytest.mark.parametrize("why", ["slow", "error"])
def test_a_computer_that_is_not_worth_it_is_left_out_and_free(home: Home, why: str) -> None:
    async def main() -> None:
        home.laptop.version = RANKS_SINCE - 1  # it does not compute together with the desk
        await home.master.load(ANY)
        match why:
            case "slow":
                home.laptop._ms = 2000.0
            case _:
                home.laptop.errors["send_weights"] = failing(EngineError("No."))
        await weighed(home, home.laptop)

        assert home.stages == ["Desk"]
        assert home.master.is_ready
        assert ("unload" in home.laptop.calls) == ("assign" in home.laptop.calls)
        calls = list(home.laptop.calls)
        home.master.weigh()
        await asyncio.sleep(0)
        assert home.laptop.calls == calls

    run(main())


def test_a_computer_that_is_back_gets_what_was_asked_for_it(home: Home) -> None:
    async def main() -> None:
        await home.computers.come(home.laptop)
        await home.master.load(SPLIT)
        home.lose_laptop()
        await home.master.ready(ANY)
        assert home.stages == ["Desk"]
        await weighed(home, home.laptop)

        assert home.stages == ["Desk", "Laptop"]
        assert home.master.request == SPLIT

    run(main())


def test_a_plan_whose_link_became_slow_is_changed(home: Home) -> None:
    async def main() -> None:
        await home.computers.come(home.laptop)
        await home.master.load(ANY)
        assert home.stages == ["Laptop"]
        home.desk.link = LinkCost(rtt_ms=60_000.0, bytes_per_s=1e6)
        assert await home.master.measurements.links.again(home.desk, home.laptop)
        ends = {"source": home.desk.node_id, "target": home.laptop.node_id}
        home.master.happened(LinkChanged(**ends))
        await weighed(home)

        assert home.stages == ["Desk"]

    run(main())
