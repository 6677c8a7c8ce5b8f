"""What a generator sends with its steps, and how many it sends at once."""

import asyncio
from contextlib import aclosing

import pytest
from chain_answers import GREEDY, answer, expected, on_a_chain
from fake_chain import FakeChain
from fake_cluster import until

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.wire.activation_messages import Sampling


def test_the_same_prompt_twice_at_once_is_two_conversations() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        answers = await asyncio.gather(*(answer(generator, [1, 2, 3], 6) for _ in range(2)))

        assert answers == [expected([1, 2, 3], 6)] * 2
        assert len(chain.opened) == 2

    on_a_chain(scenario)


@pytest.mark.parametrize(("shared", "opened"), [(3, 1), (2, 2)])
def test_a_conversation_goes_on_where_at_least_half_of_it_is_the_same(
    shared: int, opened: int
) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3, 4, 5, 6], 1)
        usage = Usage()
        prompt = [*range(1, shared + 1), 50, 51]
        assert await answer(generator, prompt, 2, usage) == expected(prompt, 2)

        assert len(chain.opened) == opened
        assert usage == Usage(prompt_tokens=shared + 2, cached_tokens=shared if opened == 1 else 0)

    on_a_chain(scenario)


def test_a_prompt_has_as_many_chunks_under_way_as_keep_every_stage_busy() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        asking = asyncio.create_task(answer(generator, list(range(20)), 1))
        await until(lambda: len(chain.forwards) == 3)  # one for each of two stages, one to follow
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(chain.forwards) == 3
        asking.cancel()
        await asyncio.wait([asking])

    on_a_chain(scenario, chunk_tokens=2)


def test_the_chunks_of_a_prompt_that_is_cancelled_are_taken_back() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        asking = asyncio.create_task(answer(generator, list(range(20)), 1))
        await until(lambda: len(chain.forwards) == 3)
        assert not chain.trims
        asking.cancel()
        await asyncio.wait([asking])
        assert chain.trims == [0]

        chain.is_silent = False
        assert await answer(generator, [1, 2, 3], 2) == expected([1, 2, 3], 2)

    on_a_chain(scenario, chunk_tokens=2)


def test_a_token_says_how_long_it_took_and_its_stages_computed() -> None:
    now = 100.0

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        nonlocal now
        chain.is_silent = True
        stream = generator.tokens([1, 2, 3], GREEDY, limit=1, usage=Usage())
        async with aclosing(stream):
            asking = asyncio.ensure_future(anext(stream))
            await until(lambda: chain.forwards)
            now, chain.is_silent = 100.5, False
            chain.send_nowait(chain.forwards[0], bytes(12))
            token = await asking
        assert token.seconds == 0.5
        assert token.compute_ms == (1.0,)

    on_a_chain(scenario, clock=lambda: now)


def test_without_a_repetition_penalty_no_history_travels() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3], 2)
        assert [f.sampling for f in chain.forwards] == [GREEDY, GREEDY]

    on_a_chain(scenario)


def test_a_repetition_penalty_brings_the_history_along() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        sampling = Sampling(repetition_penalty=1.2)
        stream = generator.tokens([1, 2, 3], sampling, limit=2, usage=Usage())
        assert [token async for token in stream]

        asked = [f.sampling for f in chain.forwards]
        assert asked[0] is not None
        assert asked[0].history == (1, 2, 3)
        assert asked[1] is not None
        assert asked[1].history is None

    on_a_chain(scenario)


def test_a_stage_that_lost_the_session_gets_its_history_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        sampling = Sampling(repetition_penalty=1.2)
        stream = generator.tokens([1, 2, 3], sampling, limit=8, usage=Usage())
        tokens = [1, 2, 3]
        async for token in stream:
            tokens.append(token.token_id)
            if len(tokens) == 5:
                chain.caches.clear()
        asked = [f for f in chain.forwards if f.sampling is not None and f.sampling.history]
        again = asked[-1]
        assert again is not chain.forwards[0]
        assert again.sampling is not None
        assert again.sampling.history == tuple(tokens[: again.position + 1])

    on_a_chain(scenario, is_exact_in_chunks=False)
