"""Which conversations the next plan may take over, and what is waited for before plans change."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fake_chain import FakeChain
from fake_cluster import FakeComputers, run
from fake_deployment import deployment_on, three

from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.events import Events
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.taking_over import TakingOver
from potluck.errors import PeerLostError
from potluck.ids import SessionId
from potluck.store.registry import LocalModel

GONE = PeerLostError("Its owner wants the memory.")


@asynccontextmanager
async def deployed(model: LocalModel) -> AsyncGenerator[tuple[Deployment, Pipeline], None]:
    """A plan of two computers in force, with a step under way that does not end."""
    desk, laptop, _ = three()
    deployment, chain = await deployment_on(model, desk, laptop, layers=(2, 2)), FakeChain()
    chain.is_silent = True
    pipeline = Pipeline(epoch=7, first=chain, last=chain, stages=2)
    deployment.pipeline = pipeline
    step = pipeline.start_step(SessionId("a"), step=1, position=0, tokens=[1], sampling=None)
    yield deployment, pipeline
    pipeline.give_up(step)


def taking_over() -> TakingOver:
    return TakingOver(FakeComputers(three()[0]), Events())


def test_conversations_go_on_with_the_next_plan_also_if_a_step_has_not_ended_in_time(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.master.deployment.WITHDRAW_S", 0.01)

    async def main() -> None:
        for is_withdrawn in (True, False):
            async with deployed(model) as (deployment, pipeline):
                planned = deployment.planned
                following = replace(planned, plan=replace(planned.plan))
                if is_withdrawn:
                    await deployment.withdraw(GONE)
                else:  # a computer is lost: what it had cached is
                    deployment.fail(GONE)
                assert not pipeline.is_drained
                taking = taking_over()
                taking.leave(deployment, following)
                assert taking.take() is (deployment if is_withdrawn else None)

    run(main())


@pytest.mark.parametrize(("token_s", "limit_s"), [(0.1, 0.8), (1.5, 2.25), (9.0, 3.0)])
def test_the_steps_under_way_may_take_as_long_as_a_token_takes_and_not_much_longer(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch, token_s: float, limit_s: float
) -> None:
    async def main() -> None:
        async with deployed(model) as (deployment, pipeline):
            limits = list[float]()

            async def drain(limit_s: float) -> None:
                limits.append(limit_s)

            monkeypatch.setattr(pipeline, "drain", drain)
            pipeline.times.note(token_s, (1.0, 1.0))
            await deployment.withdraw(GONE)
            assert limits == [limit_s]
            assert pipeline.broken is GONE

    run(main())


def test_what_comes_from_the_plan_before_comes_before_the_next_change(model: LocalModel) -> None:
    async def main() -> None:
        async with deployed(model) as (deployment, pipeline):
            taking, has_come = taking_over(), asyncio.Event()
            taking._bringing = asyncio.create_task(has_come.wait())  # type: ignore[assignment]
            planned = deployment.planned
            taking.leave(deployment, replace(planned, plan=replace(planned.plan)))
            draining = asyncio.create_task(taking.drain(deployment))
            for _ in range(9):
                await asyncio.sleep(0)
            assert pipeline.sends
            has_come.set()
            pipeline.give_up(pipeline._steps.remove_all()[0])
            await draining
            assert pipeline.is_drained

    run(main())
