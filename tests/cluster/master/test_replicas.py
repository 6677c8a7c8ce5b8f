"""The other times that a model is held: they begin, are lost, leave, take the place of the first, and end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fake_cluster import FakeComputer, failing, run, until
from fake_deployment import deployment_on, three

from potluck.cluster.driver.generation import Generator
from potluck.cluster.events import StageLost
from potluck.cluster.loss import computer_lost
from potluck.cluster.master.backoff import MOST_S
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.replicas import Replicas
from potluck.errors import EngineError, NotEnoughMemoryError, RemoteError
from potluck.ids import NodeId
from potluck.plan.stages import Plan
from potluck.store.registry import LocalModel
from potluck.wire.messages import DeviceId

RETRY_S = 20.0


class House:
    """The desk answers with the model, which is to be held twice, and the laptop and the mac can hold it too."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.desk, self.laptop, self.mac = self.all = three()
        self.laptop.stores_weights = self.mac.stores_weights = True
        self.here = [self.desk, self.laptop]
        self.gone: list[FakeComputer] = []
        self.going: list[FakeComputer] = []
        self.plans: dict[NodeId, Planned] = {}
        self.made: list[Deployment] = []
        self.asked: list[frozenset[NodeId]] = []  # the computers that a replica was planned on
        self.has_room = True
        self.told: list[str] = []
        self.changes = 0
        self.now = 0.0
        self.generator = Generator()
        self.replicas = Replicas(
            present=lambda: [c.node_id for c in self.here],
            leaving=lambda: [c.node_id for c in self.going],
            deployment=self._make,
            plan=self._plan,
            tell=self.told.append,
            changed=self._changed,
            retry_s=RETRY_S,
            answers_s=5.0,
            clock=lambda: self.now,
        )

    def _changed(self) -> None:
        self.changes += 1

    def _make(self, planned: Planned, beside: Deployment) -> Deployment:
        made = self.deployment(planned)
        self.made.append(made)
        return made

    def deployment(self, planned: Planned) -> Deployment:
        computers = {c.node_id: c for c in self.all if c not in self.gone}
        return Deployment(planned=planned, epoch=7, computers=computers, changed=lambda: None)

    async def _plan(self, nodes: frozenset[NodeId], planned: Planned) -> Plan:
        self.asked.append(nodes)
        if not self.has_room:
            raise NotEnoughMemoryError(2, 1)
        return self.plans[min(nodes)].plan

    @asynccontextmanager
    async def first(self) -> AsyncIterator[Deployment]:
        """The deployment in force, which is on the desk, and the replica of its plan, on the laptop."""
        for computer in self.all:
            made = await deployment_on(self.model, computer, layers=(4,))
            self.plans[computer.node_id] = made.planned
        planned = self.plans[self.desk.node_id]
        others = (self.plans[self.laptop.node_id].plan,)
        first = self.deployment(replace(planned, replicas=others, replicas_wanted=2))
        self.generator.attach(await first.start(), context=64)
        self.replicas.begin(first, self.generator)
        try:
            yield first
        finally:
            await self.replicas.end()
            await first.stop()

    async def answers(self, computer: FakeComputer) -> None:
        """Wait until this computer holds the replica that answers."""
        await until(lambda: self.ready == [computer.name])

    async def ended(self) -> None:
        """Wait until no replica is left beside the first."""
        await until(lambda: not self.replicas._others)

    @property
    def ready(self) -> list[str]:
        ready = self.replicas.ready
        return [] if ready is None else [s.name for s in ready.planned.plan.stages]

    def lose(self, computer: FakeComputer, device: DeviceId | None = None) -> None:
        how = "lost its process"
        lost = StageLost(node_id=computer.node_id, place=computer.name, how=how, device=device)
        self.replicas.lost(lost, computer_lost(computer.name, how))

    async def looks(self, after_s: float) -> list[frozenset[NodeId]]:
        """The computers that a replica is planned on when so much time has passed."""
        before = len(self.asked)
        self.now += after_s
        self.replicas.look()
        await until(lambda: self.replicas._planning is None)
        return self.asked[before:]


def test_a_device_that_a_replica_does_not_use_is_no_loss_to_it(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            await house.answers(house.laptop)
            house.lose(house.laptop, DeviceId(kind="cuda", index=0))
            assert house.ready == ["Laptop"]
            house.lose(house.laptop, DeviceId(kind="cpu", index=0))
            await house.ended()
            assert "lost its process" in house.told[0]

    run(main())


def test_the_replicas_of_a_plan_are_prepared_and_end_with_it(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            await house.answers(house.laptop)
            assert house.laptop.is_loaded
            assert house.changes == 1
            assert await house.looks(999.0) == []  # none is missing
            await house.replicas.end()
            assert not house.laptop.is_loaded
            assert house.desk.is_loaded
            assert house.replicas.planned is None
            assert await house.looks(999.0) == []
        assert house.told == []

    run(main())


def test_one_that_has_not_begun_ends_and_who_is_kept_keeps_its_layers(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            await house.replicas.end()  # its task has not run
            assert house.laptop.calls == ["unload"]
            assert house.replicas.deployments == []
        house = House(model)
        async with house.first():
            await house.answers(house.laptop)
            await house.replicas.end(keep=[house.laptop.node_id])
            assert house.laptop.is_loaded

    run(main())


def test_a_computer_that_fails_each_time_is_left_out_for_longer_and_longer_and_told_once(
    model: LocalModel,
) -> None:
    async def main() -> None:
        house = House(model)
        laptop = frozenset({house.laptop.node_id})
        async with house.first():
            await house.answers(house.laptop)
            house.lose(house.laptop)
            await house.ended()
            for pause_s in (20.0, 40.0, 80.0, 160.0, MOST_S, MOST_S):
                house.laptop.errors["load"] = failing(EngineError("No memory."))
                assert await house.looks(pause_s - 1) == []
                assert await house.looks(1.0) == [laptop]
                await house.ended()
        (told,) = house.told
        assert told.startswith("Laptop lost its process")
        assert told.endswith(
            "Its answers go on at another replica. It will be tried again, less and less often."
        )

    run(main())


def test_one_that_has_answered_for_long_is_tried_again_soon_and_told_again(
    model: LocalModel,
) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            for _ in range(2):
                await house.answers(house.laptop)
                house.lose(house.laptop)
                await house.ended()
                assert await house.looks(RETRY_S - 1) == []
                assert len(await house.looks(1.0)) == 1
                await house.answers(house.laptop)
                await house.looks(MOST_S)
            assert len(house.told) == 2

    run(main())


def test_another_computer_takes_the_place_of_one_that_fails(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        house.laptop.errors["load"] = failing(EngineError("No memory."), times=2)
        async with house.first():
            await house.ended()
            assert "Laptop: the model cannot be held there." in house.told[0]
            assert len(await house.looks(RETRY_S)) == 1
            await house.ended()
            house.here.append(house.mac)
            assert await house.looks(RETRY_S) == [{house.mac.node_id}]
            await house.answers(house.mac)

    run(main())


def test_where_there_is_no_room_is_looked_less_often_until_another_computer_comes(
    model: LocalModel,
) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            await house.answers(house.laptop)
            house.lose(house.laptop)
            await house.ended()
            house.has_room = False
            assert len(await house.looks(RETRY_S)) == 1
            assert len(await house.looks(RETRY_S)) == 1
            assert await house.looks(RETRY_S) == []
            house.has_room = True
            house.here = [house.desk, house.mac]
            assert await house.looks(0.0) == [{house.mac.node_id}]
            await house.answers(house.mac)

    run(main())


def test_one_that_leaves_ends_without_blame(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        async with house.first():
            await house.answers(house.laptop)
            house.going = [house.laptop]
            assert house.ready == []
            assert await house.looks(0.0) == []
            await house.ended()
            assert not house.laptop.is_loaded
            house.going = []
            assert house.replicas._failing.is_due(house.laptop.node_id)
            assert len(await house.looks(RETRY_S)) == 1
            await house.answers(house.laptop)
        assert house.told == ["Laptop: a computer leaves. Answers go on at another replica."]

    run(main())


@pytest.mark.parametrize("refuses", [False, True])
def test_the_conversations_of_one_that_leaves_go_to_one_that_stays_or_its_answers_end_there(
    model: LocalModel, *, refuses: bool
) -> None:
    async def main() -> None:
        house = House(model)
        for computer in house.all:
            computer.moves_caches = True
        if refuses:  # as a program does that does not know the request
            house.desk.errors["take_sessions"] = failing(
                RemoteError("It does not know take_sessions.")
            )
        async with house.first() as first:
            await house.answers(house.laptop)
            ending = house.replicas.ready
            assert ending is not None
            assert ending.pipeline is not None
            house.going = [house.laptop]
            await house.looks(0.0)
            await house.ended()
            assert house.desk.calls.count("take_sessions") == 1
            assert "take_sessions" not in house.laptop.calls
            assert ending.pipeline.is_drained != refuses
            assert first.pipeline is not None
            assert first.pipeline.broken is None
            if not refuses:
                (told,) = house.desk.taken_over
                load = ending.wiring.load_of(0)
                assert (told.epoch, told.before.epoch, told.before.key) == (7, 7, load.key)
                (hop,) = told.before.hops
                assert (hop.node_id, hop.layers) == (house.laptop.node_id, (0, 4))

    run(main())


def test_those_of_the_first_go_to_the_one_that_takes_its_place(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        for computer in house.all:
            computer.moves_caches = True
        async with house.first() as first:
            await house.answers(house.laptop)
            house.going = [house.desk]
            promoted = house.replicas.promote(first)
            await house.ended()
            assert house.laptop.calls.count("take_sessions") == 1
            assert first.pipeline is not None
            assert first.pipeline.is_drained
            assert house.generator.broken is None
            await promoted.stop()

    run(main())


def test_one_with_an_older_program_is_not_asked(model: LocalModel) -> None:
    async def main() -> None:
        house = House(model)
        house.desk.moves_caches = True  # the laptop does not say so
        async with house.first():
            await house.answers(house.laptop)
            house.going = [house.laptop]
            await house.looks(0.0)
            await house.ended()
            assert "take_sessions" not in house.desk.calls

    run(main())


def test_another_one_takes_the_place_of_the_first_which_is_planned_again(
    model: LocalModel,
) -> None:
    async def main() -> None:
        house = House(model)
        desk = {house.desk.node_id}
        async with house.first() as first:
            await house.answers(house.laptop)
            house.lose(house.desk)
            first.fail(computer_lost("Desk", "lost its process"))
            promoted = house.replicas.promote(first)
            assert promoted is house.made[0]
            await house.ended()
            assert not house.desk.is_loaded
            assert house.generator.broken is None
            assert await house.looks(RETRY_S - 1) == []
            assert await house.looks(1.0) == [desk]
            await house.answers(house.desk)
            await promoted.stop()
        assert house.told == []  # the master has told it

    run(main())


def test_a_computer_that_is_gone_before_its_replica_is_made_is_not_waited_for(
    model: LocalModel,
) -> None:
    async def main() -> None:
        house = House(model)
        house.gone = [house.laptop]
        async with house.first():
            assert house.replicas.deployments == []
            assert await house.looks(RETRY_S - 1) == []
            house.gone = []
            assert len(await house.looks(1.0)) == 1
            await house.answers(house.laptop)

    run(main())
