"""The readers of a plan that comes into force, and goes, and comes again."""

import asyncio
from dataclasses import replace
from typing import cast

from fake_cluster import failing, run, until
from fake_deployment import deployment_on, three

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.reader import Reader
from potluck.cluster.events import StageLost
from potluck.cluster.loss import computer_lost
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.readers import Readers
from potluck.errors import EngineError, PotluckError
from potluck.plan.apart import Reading
from potluck.store.registry import LocalModel
from potluck.wire.messages import DeviceId, DeviceKind


class FakeGenerator:
    def read_with(self, reader: Reader | None, pipeline: object) -> None:
        assert reader is None


async def nobody(_: Planned) -> Reading | None:
    return None


def test_one_is_looked_for_after_a_recovery_and_when_another_computer_has_come(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, attic = three()
        answering = await deployment_on(model, desk, layers=(4,))
        reading = await deployment_on(model, laptop, layers=(4,))
        laptop.errors["load"] = failing(EngineError("No memory."))
        found = Reading(plan=reading.planned.plan, least_tokens=1, most_tokens=64, explanation="")
        here, asked, told = {desk.node_id}, list[Planned](), list[str]()
        pays = False

        async def find(planned: Planned) -> Reading | None:
            asked.append(planned)
            return found if pays else None

        readers = Readers(
            present=lambda: here,
            deployment=lambda planned, answers: reading,
            find=find,
            tell=told.append,
            retry_s=99.0,
        )
        generator = cast("Generator", FakeGenerator())
        answering.planned = replace(answering.planned, readers_weighed=True)
        readers.begin(answering, generator)
        readers.look(may_choose=True)
        assert readers._work is None  # who is asked for certain computers gets no others
        answering.planned = replace(answering.planned, may_have_readers=True)
        readers.look(may_choose=True)
        assert readers._work is None  # all that are here were weighed
        here.add(attic.node_id)
        readers.look(may_choose=False)
        assert readers._work is None
        readers.look(may_choose=True)
        await until(lambda: len(asked) == 1 and readers._work is None)
        readers.look(may_choose=True)
        assert readers._work is None  # nobody else has come

        await readers.end()
        pays = True
        here.add(laptop.node_id)
        answering.planned = replace(answering.planned, readers_weighed=False)  # a recovery
        readers.begin(answering, generator)
        readers.look(may_choose=True)
        await until(lambda: bool(told))  # it is prepared at once, and says why it cannot read
        assert answering.planned.reading is found
        assert "Laptop cannot read prompts." in told[0]
        await readers.end()

    run(main())


def test_a_plan_that_goes_before_its_readers_have_begun_leaves_the_way_free_for_the_next(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        answering = await deployment_on(model, desk, layers=(4,))
        reading = await deployment_on(model, laptop, layers=(4,))
        laptop.errors["load"] = failing(EngineError("No memory."))
        answering.planned = replace(
            answering.planned,
            reading=Reading(
                plan=reading.planned.plan, least_tokens=1, most_tokens=64, explanation=""
            ),
        )
        told: list[str] = []

        def make(planned: Planned, answers: Deployment) -> Deployment:
            return reading

        readers = Readers(
            present=lambda: {laptop.node_id},
            deployment=make,
            find=nobody,
            tell=told.append,
            retry_s=99.0,
        )
        generator = cast("Generator", FakeGenerator())
        readers.begin(answering, generator)
        await readers.end()  # its task has not run
        readers.begin(answering, generator)
        await until(lambda: bool(told))
        assert "Laptop cannot read prompts." in told[0]
        await asyncio.sleep(0)
        await readers.end()

    run(main())


def test_a_device_that_does_not_read_is_no_loss_to_those_who_read(model: LocalModel) -> None:
    async def main() -> None:
        _, laptop, _ = three()
        reading = await deployment_on(model, laptop, layers=(4,))
        readers = Readers(
            present=lambda: {laptop.node_id},
            deployment=lambda planned, answers: reading,
            find=nobody,
            tell=lambda text: None,
            retry_s=99.0,
        )
        readers.deployment = reading
        lost = computer_lost("Laptop")
        kinds: tuple[tuple[DeviceKind, PotluckError | None], ...] = (("cuda", None), ("cpu", lost))
        for kind, failure in kinds:
            device = DeviceId(kind=kind, index=0)
            event = StageLost(
                node_id=laptop.node_id, place="Laptop", how="stopped", epoch=7, device=device
            )
            readers.lost(replace(event, epoch=6), lost)  # of the plan before
            assert reading._failure is None
            readers.lost(event, lost)
            assert reading._failure is failure

    run(main())
