"""A replay repeats the steps in which tokens were computed, so that it gives the same bits."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from chain_answers import GREEDY, answer, attached
from fake_chain import FakeChain, RoundingChain
from fake_cluster import run, until

from potluck.cluster.driver.computed import ComputedSteps
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Token, Usage

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


async def undisturbed(*turns: list[int], chunk_tokens: int = 4) -> list[list[int]]:
    """The answers to these turns of one conversation, on one pipeline."""
    generator = Generator()
    async with attached(
        generator, RoundingChain(), context=256, room=256, chunk_tokens=chunk_tokens
    ):
        return [await answer(generator, prompt, 12) for prompt in turns]


def stream_of(generator: Generator, prompt: list[int]) -> AsyncGenerator[Token, None]:
    return generator.tokens(prompt, GREEDY, limit=12, usage=Usage())


async def read_to_end(stream: AsyncGenerator[Token, None]) -> list[int]:
    return [token.token_id async for token in stream]


@pytest.mark.parametrize("read", range(12))
def test_an_answer_goes_on_as_it_would_have_on_a_pipeline_of_another_plan(read: int) -> None:
    async def main() -> None:
        [expected] = await undisturbed(PROMPT)
        generator, new = Generator(), RoundingChain()
        tokens: list[int] = []
        async with (
            aclosing(stream_of(generator, PROMPT)) as stream,
            attached(generator, RoundingChain(), chunk_tokens=4),
        ):
            tokens += [(await anext(stream)).token_id for _ in range(read)]
            async with attached(generator, new, epoch=2, chunk_tokens=4 if read == 0 else 256):
                tokens += [token.token_id async for token in stream]
        assert tokens == expected

    run(main())


def test_caches_that_a_stage_lost_are_computed_in_the_same_steps() -> None:
    async def main() -> None:
        [expected] = await undisturbed(PROMPT)
        for lost in range(len(PROMPT) + 4):
            generator, chain = Generator(), RoundingChain()
            tokens: list[int] = []
            async with attached(generator, chain, chunk_tokens=4):
                async for token in stream_of(generator, PROMPT):
                    tokens.append(token.token_id)
                    if len(tokens) == 5:
                        del chain.caches[chain.opened[0]][lost:]
            assert tokens == expected

    run(main())


@pytest.mark.parametrize("seed", range(30))
def test_a_conversation_with_losses_in_it_is_the_one_without(seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        turns = [PROMPT[: chance.randint(2, 11)]]
        for _ in range(3):  # each turn goes back to somewhere, and goes on with something else
            [*_, answered] = await undisturbed(*turns)
            spoken = [*turns[-1], *answered]
            kept = spoken[: chance.randint(len(spoken) // 2 + 1, len(spoken))]
            turns.append(
                [*kept, *(chance.randrange(900, 990) for _ in range(chance.randint(1, 9)))]
            )
        expected = await undisturbed(*turns)

        generator = Generator()
        answers: list[list[int]] = []
        epoch, pipelines = 1, []
        for prompt in turns:
            tokens: list[int] = []
            stops = {chance.randrange(13) for _ in range(2)}
            async with aclosing(stream_of(generator, prompt)) as stream:
                while len(tokens) < 12:
                    if len(tokens) in stops or not pipelines:
                        stops.discard(len(tokens))
                        entered = attached(
                            generator, RoundingChain(), epoch=epoch, context=256, room=256,
                            chunk_tokens=4,
                        )  # fmt: skip
                        await entered.__aenter__()
                        pipelines.append(entered)
                        epoch += 1
                    tokens.append((await anext(stream)).token_id)
            answers.append(tokens)
        for entered in pipelines:
            await entered.__aexit__(None, None, None)
        assert answers == expected

    run(main())


def test_where_chunks_change_nothing_a_replay_takes_large_ones() -> None:
    async def main() -> None:
        generator, new = Generator(), FakeChain()
        async with (
            aclosing(stream_of(generator, PROMPT)) as stream,
            attached(generator, FakeChain(), chunk_tokens=4),
        ):
            for _ in range(8):
                await anext(stream)
            async with attached(generator, new, epoch=2, is_exact_in_chunks=True):
                await anext(stream)
                await anext(stream)
                await anext(stream)
        assert new.forwards[0].tensor.shape[0] >= len(PROMPT) + 8

    run(main())


def test_single_tokens_that_are_known_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        generator, new = Generator(), RoundingChain()
        async with (
            aclosing(stream_of(generator, PROMPT)) as stream,
            attached(generator, RoundingChain()),
        ):
            for _ in range(8):
                await anext(stream)
            new.is_silent = True
            async with attached(generator, new, epoch=2):
                rest = asyncio.create_task(read_to_end(stream))
                await until(lambda: len(new.forwards) == 1 + 8)  # the prompt, and what was known
                rest.cancel()
                await asyncio.wait([rest])

    run(main())


def test_what_was_computed_is_known_step_by_step() -> None:
    steps = ComputedSteps()
    steps.add(0, 4)
    steps.add(4, 5)
    steps.add(5, 9)
    steps.add(0, 9)  # a replay changes nothing
    assert [steps.end_of(position) for position in (0, 4, 5)] == [4, 5, 9]
    assert [steps.start(position) for position in (3, 4, 8, 9)] == [0, 4, 5, 9]

    steps.trim(7)
    assert (steps.end, steps.end_of(5)) == (7, 7)
    steps.trim(6)
    assert (steps.end, steps.end_of(5)) == (6, 6)
    assert [steps.start(position) for position in (3, 4, 5, 6)] == [0, 4, 5, 6]


def test_a_prompt_that_is_asked_again_has_the_same_answer() -> None:
    """In all of these the last token of a prompt has other bits alone than in its chunk."""
    others = [*PROMPT[:-1], 7], [*PROMPT, 7, 7], PROMPT[:-2]

    async def main() -> None:
        generator = Generator()
        async with attached(generator, RoundingChain(), chunk_tokens=4):
            fresh = [await read_to_end(stream_of(generator, PROMPT))]
            for other in others:
                await read_to_end(stream_of(generator, other))
                fresh.append(await read_to_end(stream_of(generator, PROMPT)))
        assert fresh == fresh[:1] * len(fresh)

    run(main())
