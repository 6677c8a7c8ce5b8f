"""Answers from a generator whose pipelines are fake chains."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from fake_chain import FakeChain, next_token

from potluck.cluster.driver.attached import Room, Speed
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Usage
from potluck.model.mixing.rope import Stretches
from potluck.wire.activation_messages import Sampling

GREEDY = Sampling()
_ONE_STRETCH = Stretches()
_SPEED = Speed()


@asynccontextmanager
async def attached(
    generator: Generator,
    chain: FakeChain,
    *,
    epoch: int = 1,
    stages: int = 2,
    context: int = 64,
    room: int = 64,
    chunk_tokens: int = 256,
    is_exact_in_chunks: bool = False,
    keeps_sessions: bool = False,
    takes_drafts: bool = False,
    stretches: Stretches = _ONE_STRETCH,
    clock: Callable[[], float] = time.perf_counter,
    speed: Speed = _SPEED,
    is_replica: bool = False,
) -> AsyncGenerator[Pipeline, None]:
    """Yield a pipeline over this chain, attached to the generator; shut it at the end."""
    pipeline = Pipeline(
        epoch=epoch,
        first=chain,
        last=chain,
        stages=stages,
        is_exact_in_chunks=is_exact_in_chunks,
        keeps_sessions=keeps_sessions,
        takes_drafts=takes_drafts,
        stretches=stretches,
        clock=clock,
    )
    chain.report = pipeline.step_failed
    running = asyncio.create_task(pipeline.run())
    generator.attach(
        pipeline,
        context=context,
        room=Room(room, "Laptop"),
        chunk_tokens=lambda _: chunk_tokens,
        speed=speed,
        is_replica=is_replica,
    )
    try:
        yield pipeline
    finally:
        pipeline.shut()
        running.cancel()
        await asyncio.wait([running])
    assert chain.is_closed


def on_a_chain(
    scenario: Callable[[Generator, FakeChain], Awaitable[None]],
    *,
    limits: AnswerLimits | None = None,
    clock: Callable[[], float] = time.perf_counter,
    is_exact_in_chunks: bool = True,
    takes_drafts: bool = False,
    stretches: Stretches = _ONE_STRETCH,
    **options: int,
) -> FakeChain:
    """Run a scenario against a generator whose pipeline is a fake chain."""

    async def run() -> FakeChain:
        chain = FakeChain()
        generator = Generator(limits=limits or AnswerLimits(), clock=clock)
        async with (
            asyncio.timeout(10),
            attached(
                generator,
                chain,
                is_exact_in_chunks=is_exact_in_chunks,
                keeps_sessions=False,
                takes_drafts=takes_drafts,
                stretches=stretches,
                clock=clock,
                speed=_SPEED,
                is_replica=False,
                **options,
            ),
        ):
            await scenario(generator, chain)
        return chain

    return asyncio.run(run())


async def answer(
    generator: Generator, prompt: list[int], limit: int, usage: Usage | None = None
) -> list[int]:
    stream = generator.tokens(prompt, GREEDY, limit=limit, usage=usage or Usage())
    return [token.token_id async for token in stream]


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
