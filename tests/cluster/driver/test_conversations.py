"""Prompts that begin alike have their beginning computed once, and each conversation goes on."""

import asyncio
import random
from contextlib import aclosing

import pytest
from chain_answers import GREEDY, answer, attached, expected, on_a_chain
from fake_chain import FakeChain, RoundingChain
from fake_cluster import run, until

from potluck.cluster.driver.generation import Generator, Usage
from potluck.cluster.driver.limits import AnswerLimits

FORKS = AnswerLimits(fork_tokens=4)
SYSTEM = list(range(100, 120))


def computed(chain: FakeChain) -> int:
    """How many tokens the chain has computed."""
    return sum(forward.tensor.shape[0] for forward in chain.forwards)


def test_two_conversations_with_one_beginning_keep_both_their_caches() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        mine, theirs = [*SYSTEM, 1, 2, 3, 4, 5], [*SYSTEM, 6, 7, 8]
        first = await answer(generator, mine, 3)
        for _ in range(2):  # its own caches, then a copy of another one's
            usage = Usage()
            assert await answer(generator, theirs, 2, usage) == expected(theirs, 2)
            assert usage.cached_tokens >= len(SYSTEM)
        usage = Usage()
        prompt = [*mine, *first, 9]

        assert await answer(generator, prompt, 2, usage) == expected(prompt, 2)

        assert usage.cached_tokens == len(prompt) - 2
        assert len(chain.opened) == 2

    on_a_chain(scenario, limits=FORKS)


def test_a_short_common_beginning_is_computed_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3, 4, 5, 6, 7, 8], 1)
        usage = Usage()
        await answer(generator, [1, 2, 3, 9], 1, usage)
        assert usage.cached_tokens == 0

    on_a_chain(scenario, limits=FORKS)


@pytest.mark.parametrize("chunk_tokens", [4, 7, 256])
def test_prompts_that_come_at_once_compute_what_they_share_once(chunk_tokens: int) -> None:
    prompts = [[*SYSTEM, 1000 + number, 5] for number in range(8)]

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        answers = await asyncio.gather(*(answer(generator, prompt, 1) for prompt in prompts))
        assert answers == [expected(prompt, 1) for prompt in prompts]
        assert computed(chain) == len(SYSTEM) + 2 * len(prompts)

    on_a_chain(scenario, limits=FORKS, chunk_tokens=chunk_tokens)


def test_who_is_busy_is_copied_and_not_disturbed() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        mine, theirs = [*SYSTEM, 1], [*SYSTEM, 2]
        async with aclosing(generator.tokens(mine, GREEDY, limit=9, usage=Usage())) as stream:
            tokens = [(await anext(stream)).token_id for _ in range(3)]
            assert await answer(generator, theirs, 3) == expected(theirs, 3)
            tokens += [token.token_id async for token in stream]
        assert tokens == expected(mine, 9)

    on_a_chain(scenario, limits=FORKS)


def test_who_waits_for_a_beginning_that_is_cancelled_computes_it() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        mine, theirs = [*SYSTEM, 1], [*SYSTEM, 2]
        first, second = (asyncio.create_task(answer(generator, one, 2)) for one in (mine, theirs))
        await until(lambda: bool(chain.forwards))
        assert len(chain.forwards) == 1
        chain.is_silent = False
        first.cancel()

        assert await second == expected(theirs, 2)

    on_a_chain(scenario, limits=FORKS)


@pytest.mark.parametrize("kept", [0, 3, 11])
def test_a_stage_that_has_less_to_copy_than_was_thought_is_sent_the_rest(kept: int) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [*SYSTEM, 1], 3)
        del chain.caches[chain.opened[0]][kept:]
        theirs = [*SYSTEM, 2, 3]

        assert await answer(generator, theirs, 2) == expected(theirs, 2)

    # An answer that waits for others, as if they had taken its memory, would fail: none is there.
    on_a_chain(scenario, limits=FORKS)


def test_without_a_place_for_another_conversation_the_copied_one_gives_its_own() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [*SYSTEM, 1, 2, 3, 4, 5, 6], 1)
        usage = Usage()
        await answer(generator, [*SYSTEM, 9, 9], 1, usage)
        assert usage.cached_tokens == len(SYSTEM)
        assert len(chain.caches) == 1

    on_a_chain(scenario, limits=AnswerLimits(fork_tokens=4, conversations=1))


@pytest.mark.parametrize("seed", range(20))
def test_copies_go_on_elsewhere_as_they_would_have_here(seed: int) -> None:
    """Where the bits of a token depend on its step, a copy has the steps of what it was copied from."""
    chance = random.Random(seed)
    shared = [chance.randrange(900) for _ in range(chance.randrange(5, 20))]
    prompts = [[*shared, number, *range(chance.randrange(6))] for number in range(3)]
    read = chance.randrange(1, 9)

    async def answers(moved: bool) -> list[list[int]]:
        generator, told = Generator(limits=FORKS), list[list[int]]()
        async with attached(generator, RoundingChain(), context=256, room=256, chunk_tokens=4):
            for prompt in prompts[:2]:
                told.append(await answer(generator, prompt, 9))
            stream = generator.tokens(prompts[2], GREEDY, limit=9, usage=Usage())
            async with aclosing(stream):
                tokens = [(await anext(stream)).token_id for _ in range(read)]
                if not moved:
                    return [*told, [*tokens, *[token.token_id async for token in stream]]]
                async with attached(
                    generator, RoundingChain(), epoch=2, context=256, room=256, chunk_tokens=9
                ):
                    return [*told, [*tokens, *[token.token_id async for token in stream]]]

    async def main() -> None:
        assert await answers(moved=True) == await answers(moved=False)

    run(main())
