"""A pipeline between two silent links, and what is sent and said on them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fake_chain import FakeChain
from fake_cluster import run, until

from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pipeline import Pipeline
from potluck.ids import SessionId
from potluck.wire.activation_messages import Result, Sampling
from potluck.wire.messages import StepFailed

CHAT = SessionId("chat")


Scenario = Callable[[Pipeline, FakeChain, FakeChain], Awaitable[None]]


def on_two_links(
    scenario: Scenario, *, run: Callable[[Coroutine[Any, Any, None]], None] = run
) -> None:
    """A pipeline whose first and last stage are two silent links."""

    async def main() -> None:
        first, last = FakeChain(), FakeChain()
        first.is_silent = True
        clock = asyncio.get_running_loop().time
        pipeline = Pipeline(epoch=3, first=first, last=last, stages=2, silence_s=180, clock=clock)
        running = asyncio.create_task(pipeline.run())
        await until(lambda: last.attached)
        await scenario(pipeline, first, last)
        pipeline.shut()
        running.cancel()
        await asyncio.wait([running])
        assert first.is_closed
        assert last.is_closed

    run(main())


def start(pipeline: Pipeline, step: int = 1) -> PendingStep:
    return pipeline.start_step(CHAT, step=step, position=0, tokens=[1, 2], sampling=Sampling())


def failure(kind: str, *, step: int = 1, epoch: int = 3) -> StepFailed:
    return StepFailed(
        epoch=epoch, session=CHAT, step=step, kind=kind, message="A sentence.", position=5
    )


def result(*, step: int = 1, epoch: int = 3, token: int | None = 7, position: int = 2) -> Result:
    return Result(epoch=epoch, session=CHAT, step=step, position=position, token_id=token)


def follow(pipeline: Pipeline, step: int, *, stops: tuple[int, ...] = ()) -> PendingStep:
    return pipeline.follow(CHAT, step=step, sampling=Sampling(), stops=stops)
