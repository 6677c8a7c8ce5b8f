"""A device that is slow in use is planned around, and used again when it is quick again."""

import asyncio

import pytest
from fake_cluster import FakeComputer, failing, run, until
from fake_home import SPLIT, Home

from potluck.api.values.schema import PlanRequest
from potluck.cluster.driver.token_times import WINDOW_S
from potluck.cluster.events import DeviceChanged
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.cluster.master.device_watch import AGAIN_S, DeviceWatch
from potluck.cluster.master.measurements import NEEDED
from potluck.errors import EngineError
from potluck.plan.deviation import WEIGHED_S
from potluck.store.registry import LocalModel
from potluck.wire.versions import RANKS_SINCE

ANY = PlanRequest(context=64)
_TOKENS = 10  # in a window


class Watched:
    """A home with a slow desk, a fast laptop, and an attic that is nearly as fast."""

    def __init__(self, model: LocalModel) -> None:
        self.home = Home(model, deadlines=PlanningDeadlines(improve_s=0.0, settle_s=0.0))
        self.attic = FakeComputer("Attic", 3, ms=15.0)
        self.attic.version = self.home.laptop.version = RANKS_SINCE - 1  # groups are not weighed
        self.home.desk._ms, self.home.laptop._ms = 1000.0, 10.0
        self.home.computers.workers.append(self.attic)
        self.told: list[DeviceChanged] = []
        self.home.events.on(DeviceChanged, self.told.append)
        self.home.events.on(DeviceChanged, self.home.master.happened)
        self.watch = DeviceWatch(
            computers=self.home.computers, master=self.home.master, events=self.home.events
        )
        self.now = 0.0

    async def use(self, windows: int = NEEDED, **ratios: float) -> None:
        """Compute for some windows; some computers take so many times as long as their profile says."""
        for _ in range(windows):
            self.compute(**ratios)
            await self.look(WINDOW_S)

    def compute(self, **ratios: float) -> None:
        deployment = self.home.master.deployment
        assert deployment is not None
        assert deployment.pipeline is not None
        ms = {c.name: c._ms for c in (*self.home.computers.workers, self.home.desk)}
        compute_ms = [
            ratios.get(stage.name, 1.0) * ms[stage.name] * (len(stage.layers) + stage.head)
            for stage in (task.stage for task in deployment.tasks)
        ]
        for _ in range(_TOKENS):
            deployment.pipeline.times.note(WINDOW_S / _TOKENS, compute_ms)

    async def look(self, seconds: float = 1.0) -> None:
        """Look at the devices after some seconds, and weigh the plan as the node does."""
        self.now += seconds
        await self.watch.look(self.now)
        await self.watch.look(self.now)  # at what was measured by the look before
        self.home.master.weigh()
        await until(lambda: not self.home.master._weighing.is_under_way)
        await self.watch.look(self.now)


@pytest.fixture
def watched(model: LocalModel) -> Watched:
    return Watched(model)


def test_a_slow_computer_is_planned_around_after_twenty_seconds_of_use(watched: Watched) -> None:
    async def main() -> None:
        await watched.home.master.load(ANY)
        await watched.use(10)
        assert watched.home.stages == ["Laptop"]
        await watched.use(NEEDED - 1, Laptop=3.0)
        assert watched.home.stages == ["Laptop"]
        assert watched.told == []
        assert watched.watch.slower() == {}
        await watched.use(1, Laptop=3.0)

        assert watched.home.stages == ["Attic"]
        assert watched.watch.slower() == {watched.home.laptop.node_id: pytest.approx(3.0)}
        assert watched.home.notices == [
            "Laptop computes 3 times slower than measured: its layers are moved to Attic."
        ]

    run(main())


def test_one_that_is_less_slow_when_its_layers_move_is_told_of_all_the_same(
    watched: Watched,
) -> None:
    async def main() -> None:
        await watched.home.master.load(ANY)
        await watched.use()
        watched.attic.gates["send_weights"] = asyncio.Event()
        using = asyncio.create_task(watched.use(Laptop=3.0))
        await until(lambda: "send_weights" in watched.attic.calls)
        for _ in range(2 * NEEDED):
            watched.compute(Laptop=1.8)
            await watched.watch.look(watched.now)
        watched.attic.gates["send_weights"].set()
        await using

        assert watched.home.stages == ["Attic"]
        assert watched.home.notices == [
            "Laptop computes 1.8 times slower than measured: its layers are moved to Attic."
        ]

    run(main())


def test_the_layers_return_when_it_is_measured_quick_again(watched: Watched) -> None:
    async def main() -> None:
        await watched.home.master.load(ANY)
        await watched.use()
        profiles = watched.home.laptop.calls.count("profile")
        await watched.use(Laptop=3.0)
        watched.home.laptop._ms = 30.0  # it is slow still
        await watched.look(AGAIN_S)
        assert watched.home.laptop.calls.count("profile") == profiles + 1
        assert watched.home.stages == ["Attic"]
        watched.home.laptop._ms = 10.0
        watched.home.laptop.errors["profile"] = failing(EngineError("It is busy."))
        await watched.look(AGAIN_S)
        assert watched.home.stages == ["Attic"]
        await watched.look(AGAIN_S - 1)
        assert watched.home.stages == ["Attic"]
        await watched.look(1)

        assert watched.home.stages == ["Laptop"]
        assert watched.home.notices[1:] == [
            "Laptop computes as fast as before: it has layers again."
        ]

    run(main())


def test_one_that_becomes_slow_again_is_measured_later_each_time(watched: Watched) -> None:
    async def main() -> None:
        await watched.home.master.load(ANY)
        await watched.use()
        for again_s in (AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S):
            await watched.look(WEIGHED_S)
            await watched.use(2 * NEEDED, Laptop=3.0)
            assert watched.home.stages == ["Attic"]
            await watched.look(again_s - 2 * NEEDED * WINDOW_S - 1)
            assert watched.home.stages == ["Attic"]
            await watched.look(2 * NEEDED * WINDOW_S)
            assert watched.home.stages == ["Laptop"]

    run(main())


def test_a_slow_computer_that_has_a_stage_still_shows_in_use_that_it_is_quick(
    watched: Watched,
) -> None:
    async def main() -> None:
        watched.home.computers.workers.remove(watched.attic)
        watched.home.desk._ms = 100.0
        await watched.home.master.load(ANY)
        await watched.use()
        await watched.use(Laptop=4.0)
        assert watched.home.stages == ["Laptop"]  # still the fastest
        assert watched.home.notices == []
        assert len(watched.told) == 1
        await watched.look(WEIGHED_S)
        await watched.use()

        assert len(watched.told) == 2
        assert watched.home.laptop.calls.count("profile") == 1

    run(main())


def test_what_all_devices_in_use_have_in_common_is_no_slowness(watched: Watched) -> None:
    """Else those that are not in use would seem to be faster, and layers would move to and fro."""

    async def main() -> None:
        watched.home.desk._ms = 12.0
        await watched.home.master.load(SPLIT)
        await watched.use(4 * NEEDED, Desk=2.5, Laptop=2.2)
        assert watched.told == []
        planned = await watched.home.master.plan(ANY)
        assert [stage.name for stage in planned.plan.stages] == ["Laptop"]
        await watched.use(Desk=2.5, Laptop=7.0)

        assert [event.node_id for event in watched.told] == [watched.home.laptop.node_id]

    run(main())


def test_what_was_asked_for_certain_computers_stays(watched: Watched) -> None:
    async def main() -> None:
        await watched.home.master.load(SPLIT)
        await watched.use(Laptop=4.0)

        assert watched.told != []
        assert watched.home.stages == ["Desk", "Laptop"]

    run(main())


def test_a_prompt_comes_before_another_plan(watched: Watched) -> None:
    async def main() -> None:
        await watched.home.master.load(ANY)
        await watched.use()
        watched.attic.gates["send_weights"] = asyncio.Event()
        using = asyncio.create_task(watched.use(Laptop=3.0))
        await until(lambda: "send_weights" in watched.attic.calls)
        await watched.home.master.ready(ANY)
        assert watched.home.stages == ["Laptop"]
        watched.attic.gates["send_weights"].set()
        await using
        await watched.look()

        assert watched.home.stages == ["Attic"]

    run(main())


@pytest.mark.parametrize("ratio", [0.6, 3.0])
def test_rounds_of_use_and_plans_end_at_what_is_true_and_stay(
    watched: Watched, ratio: float
) -> None:
    """A plan in force keeps its prediction, and new plans are made meanwhile."""

    async def main() -> None:
        deployment = await watched.home.master.load(SPLIT)
        stages = deployment.planned.plan.stages
        for _ in range(12):
            await watched.use(Desk=ratio, Laptop=ratio)
            planned = await watched.home.master.plan(SPLIT)
            assert [s.predicted_ms for s in planned.plan.stages] == pytest.approx(
                [ratio * s.predicted_ms for s in stages]
            )

    run(main())


def test_nothing_is_watched_without_a_plan(watched: Watched) -> None:
    async def main() -> None:
        await watched.look(AGAIN_S)

        assert watched.told == []
        assert watched.home.laptop.calls == []

    run(main())
