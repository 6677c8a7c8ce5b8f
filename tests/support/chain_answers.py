"""Answers from a generator whose pipeline is a fake chain."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fake_chain import FakeChain, next_token

from potluck.cluster.driver.generation import Generator, Usage
from potluck.cluster.driver.pipeline import Pipeline, Room
from potluck.wire.messages import Sampling

GREEDY = Sampling()


def on_a_chain(
    scenario: Callable[[Generator, FakeChain], Awaitable[None]],
    *,
    clock: Callable[[], float] = time.perf_counter,
    **options: int,
) -> FakeChain:
    """Run a scenario against a generator whose pipeline is a fake chain."""

    async def run() -> FakeChain:
        chain = FakeChain()
        pipeline = Pipeline(epoch=1, first=chain, last=chain, stages=2, clock=clock)
        chain.report = pipeline.step_failed
        running = asyncio.create_task(pipeline.run())
        generator = Generator(
            pipeline,
            context=64,
            room=Room(options.get("room", 64), "Laptop"),
            chunk_tokens=lambda _: options.get("chunk_tokens", 256),
            max_sessions=options.get("max_sessions", 4),
            clock=clock,
        )
        async with asyncio.timeout(10):
            await scenario(generator, chain)
        pipeline.shut()
        running.cancel()
        await asyncio.wait([running])
        assert chain.is_closed
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
