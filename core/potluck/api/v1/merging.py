"""Several answers to one request: their events in one stream, and the best of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from msgspec.structs import replace

from potluck.api.events import Finished, GenerationEvent, Piece, Started
from potluck.api.prompts import GenerationRequest

_EVENTS = 64  # that wait for a client that reads slowly

Collected: TypeAlias = tuple[Started, list[Piece], Finished]
"""All events of an answer."""


async def merged(
    generate: Callable[[GenerationRequest], AsyncGenerator[GenerationEvent, None]],
    generations: Sequence[GenerationRequest],
) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    """Yield the events of answers that are given side by side, each with the number of its answer.

    The first error ends them all.
    """
    queue: asyncio.Queue[tuple[int, GenerationEvent] | Exception] = asyncio.Queue(_EVENTS)

    async def pump(number: int, generation: GenerationRequest) -> None:
        try:
            async with aclosing(generate(generation)) as events:
                async for event in events:
                    await queue.put((number, event))
        except Exception as error:  # noqa: BLE001 - it is raised below
            await queue.put(error)

    if len(generations) == 1:  # no other task between a token and its client
        async with aclosing(generate(generations[0])) as events:
            async for event in events:
                yield 0, event
        return
    pumps = [asyncio.create_task(pump(i, one)) for i, one in enumerate(generations)]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            left -= isinstance(item[1], Finished)
            yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def with_logprobs(generation: GenerationRequest) -> GenerationRequest:
    """The same with the log probabilities of the chosen tokens, by which `best` compares."""
    if generation.sampling.logprobs is not None:
        return generation
    return replace(generation, sampling=replace(generation.sampling, logprobs=0))


def best(answers: Sequence[Collected], count: int) -> list[Collected]:
    """The answers whose tokens are the most likely in the mean, the likeliest first. All: as they are."""
    if count == len(answers):
        return list(answers)

    def likelihood(answer: Collected) -> float:
        logprobs = [token.chosen.logprob for piece in answer[1] for token in piece.logprobs]
        return sum(logprobs) / len(logprobs) if logprobs else 0.0

    return sorted(answers, key=likelihood, reverse=True)[:count]
