"""Who reads pictures for a plan in force: is found when a computer comes, ends politely, and is left alone when lost."""

from dataclasses import replace
from typing import cast

from fake_cluster import FakeComputer, run, until
from fake_deployment import deployment_on, three

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.viewer import Viewer
from potluck.cluster.events import ComputerLost
from potluck.cluster.loss import computer_lost
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.viewers import StageInForce, Viewers
from potluck.errors import EngineError, PotluckError
from potluck.ids import NodeId
from potluck.plan.viewing import Viewing
from potluck.store.registry import LocalModel


class FakeGenerator:
    def __init__(self) -> None:
        self.viewer: Viewer | None = None

    def view_with(self, viewer: Viewer | None, pipeline: object) -> None:
        self.viewer = viewer


class Bench:
    """Viewers of a deployment on the desk; the laptop could read pictures, and pays or does not."""

    def __init__(
        self, answering: Deployment, viewing: Deployment, here: set[NodeId], laptop: FakeComputer
    ) -> None:
        self.laptop = laptop
        self.answering, self.here, self.told = answering, here, list[str]()
        self.asked, self.pays = 0, True
        self.viewing, self.error = viewing, cast("PotluckError | None", None)
        self.found = Viewing(
            plan=viewing.planned.plan, ms=100.0, first_ms=900.0, explanation="It reads pictures."
        )
        self.generator, self.now = FakeGenerator(), 0.0
        self.viewers = SeeingViewers(
            "viewers",
            present=lambda: here,
            deployment=lambda planned, beside: self.viewing,
            find=self._find,
            tell=self.told.append,
            retry_s=20.0,
            clock=lambda: self.now,
        )

    async def _find(self, planned: Planned) -> Planned:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return replace(planned, viewing=self.found if self.pays else None)

    def lose(self, node: NodeId) -> None:
        lost = ComputerLost(node_id=node, name="Laptop", how="has gone")
        self.viewers.lost(lost, computer_lost("Laptop"))

    def begin(self) -> None:
        self.viewers.begin(self.answering, cast("Generator", self.generator))


class SeeingViewers(Viewers):
    """Those of a model that sees, whatever the model of the tests does; its stage is as any other."""

    def _may_have_some(self, answering: Planned) -> bool:
        return True

    async def _serve(
        self,
        deployment: Deployment | StageInForce,
        answering: Deployment,
        generator: Generator,
    ) -> None:
        await deployment.wait_broken()


async def bench_of(model: LocalModel) -> tuple[Bench, NodeId]:
    desk, laptop, _ = three()
    answering = await deployment_on(model, desk, layers=(4,))
    viewing = await deployment_on(model, laptop, layers=(4,))
    return Bench(answering, viewing, {desk.node_id}, laptop), laptop.node_id


def test_one_is_looked_for_when_another_computer_has_come_and_all_is_at_rest(
    model: LocalModel,
) -> None:
    async def main() -> None:
        bench, laptop = await bench_of(model)
        bench.begin()
        bench.viewers.look(may_choose=True)
        assert bench.asked == 0  # all that are here were weighed
        bench.here.add(laptop)
        bench.viewers.look(may_choose=False)
        assert bench.asked == 0
        bench.viewers.look(may_choose=True)
        assert bench.viewers.is_choosing
        await until(lambda: bench.viewers.is_ready)
        assert not bench.viewers.is_choosing
        assert bench.answering.planned.viewing is bench.found
        assert bench.viewers.devices_of(laptop)
        await bench.viewers.end()
        assert bench.viewers.deployment is None

    run(main())


def test_a_computer_that_does_not_pay_is_not_weighed_again(model: LocalModel) -> None:
    async def main() -> None:
        bench, laptop = await bench_of(model)
        bench.pays = False
        bench.begin()
        bench.here.add(laptop)
        bench.viewers.look(may_choose=True)
        await until(lambda: not bench.viewers.is_choosing)
        bench.viewers.look(may_choose=True)
        assert bench.asked == 1
        assert bench.viewers.deployment is None
        await bench.viewers.end()

    run(main())


def test_one_whose_owner_takes_it_back_ends_at_once_and_nobody_is_told(model: LocalModel) -> None:
    async def main() -> None:
        bench, laptop = await bench_of(model)
        bench.answering.planned = replace(bench.answering.planned, viewing=bench.found)
        bench.here.add(laptop)
        bench.begin()
        await until(lambda: bench.viewers.is_ready)
        bench.here.remove(laptop)  # it leaves, and waits until its part is unloaded
        bench.viewers.look()
        bench.viewers.look()
        await until(lambda: bench.viewers.deployment is None)
        assert bench.told == []
        await bench.viewers.end()

    run(main())


def test_one_that_fails_is_left_alone_twice_as_long_each_time(model: LocalModel) -> None:
    async def main() -> None:
        bench, laptop = await bench_of(model)
        bench.answering.planned = replace(bench.answering.planned, viewing=bench.found)
        bench.here.add(laptop)
        bench.begin()
        for pause_s in (20.0, 40.0, 80.0):
            await until(lambda: bench.viewers.is_ready)
            bench.lose(laptop)
            await until(lambda: bench.viewers.deployment is None)
            bench.now += pause_s - 1
            bench.viewers.look(may_choose=True)
            assert bench.viewers.deployment is None
            assert bench.asked == 0  # it is here: nobody takes its place
            bench.now += 1
            bench.viewing = await deployment_on(model, bench.laptop, layers=(4,))
            bench.viewers.look()
        await until(lambda: bench.viewers.is_ready)
        bench.now += 300.0  # it has served for long
        bench.lose(laptop)
        await until(lambda: bench.viewers.deployment is None)
        bench.now += 20.0
        bench.viewing = await deployment_on(model, bench.laptop, layers=(4,))
        bench.viewers.look()
        await until(lambda: bench.viewers.is_ready)
        await bench.viewers.end()

    run(main())


def test_another_one_is_looked_for_where_the_one_that_was_chosen_stays_away(
    model: LocalModel,
) -> None:
    async def main() -> None:
        bench, laptop = await bench_of(model)
        bench.answering.planned = replace(bench.answering.planned, viewing=bench.found)
        bench.here.add(laptop)
        bench.begin()
        await until(lambda: bench.viewers.is_ready)
        bench.here.remove(laptop)
        bench.lose(laptop)
        await until(lambda: bench.viewers.deployment is None)
        bench.viewers.look(may_choose=True)
        assert bench.asked == 0  # it may be back in a moment
        bench.now += 20.0
        bench.viewers.look(may_choose=False)
        assert bench.asked == 0
        bench.error = EngineError("It cannot be measured.")
        bench.viewers.look(may_choose=True)
        await until(lambda: not bench.viewers.is_choosing)
        bench.viewers.look(may_choose=True)
        assert bench.asked == 1
        bench.now += 40.0
        bench.error, bench.asked, bench.pays = None, 0, False
        bench.viewers.look(may_choose=True)
        await until(lambda: not bench.viewers.is_choosing)
        assert bench.asked == 1
        assert bench.answering.planned.viewing is None  # and the plan says nothing of it any more
        bench.viewers.look(may_choose=True)
        assert bench.asked == 1
        bench.pays = True
        bench.here.add(laptop)  # it is weighed again
        bench.viewing = await deployment_on(model, bench.laptop, layers=(4,))
        bench.viewers.look(may_choose=True)
        await until(lambda: bench.viewers.is_ready)
        await bench.viewers.end()

    run(main())
