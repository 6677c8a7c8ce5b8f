"""An answer that grows beyond the rotary frequencies of its caches is computed again with others, and only then."""

import asyncio

from chain_answers import GREEDY, answer, attached, expected, on_a_chain
from fake_chain import FakeChain, RoundingChain

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.model.mixing.rope import Stretches

STRETCHES = Stretches(limits=(10,))


def positions(chain: FakeChain) -> list[tuple[int, int]]:
    """Where each step began, and how many tokens it had."""
    return [(each.position, each.tensor.shape[0]) for each in chain.forwards]


def test_an_answer_is_computed_again_once_when_it_passes_the_limit() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await answer(generator, [1, 2, 3], 12) == expected([1, 2, 3], 12)

    chain = on_a_chain(scenario, stretches=STRETCHES, is_exact_in_chunks=False)

    begun = positions(chain)
    assert [step for step in begun if step[0] == 0] == [(0, 3), (0, 11)]
    # No token is sent that the caches would refuse.
    assert begun == [
        (0, 3),
        *((n, 1) for n in range(3, 10)),
        (0, 11),
        *((n, 1) for n in range(11, 14)),
    ]
    assert len(set(chain.opened)) == 1


def test_the_first_chunk_of_a_replay_says_how_long_the_session_is() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3], 12)

    chain = on_a_chain(scenario, stretches=STRETCHES, chunk_tokens=4)

    (replay,) = [each for each in chain.forwards[1:] if each.position == 0]
    assert replay.prompt_end == 11


def test_an_answer_that_stays_below_the_limit_is_computed_once() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3], 8)

    chain = on_a_chain(scenario, stretches=STRETCHES)

    assert positions(chain) == [(0, 3), *((n, 1) for n in range(3, 10))]
    assert len(chain.opened) == 1


def test_a_turn_on_the_other_side_of_the_limit_uses_nothing_of_the_one_before() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        usage, long = Usage(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        for prompt, cached in ((long[:8], 0), (long, 0), (long, 11), (long[:9], 0)):
            assert await answer(generator, prompt, 1, usage) == expected(prompt, 1)
            assert usage.cached_tokens == cached

    on_a_chain(scenario, stretches=STRETCHES)


def test_a_prompt_gets_no_copy_of_a_session_on_the_other_side_of_the_limit() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        system = list(range(300))
        await answer(generator, [*system, 1, 2], 1)
        for prompt, cached in (([*system, 3], 0), ([*system, *range(500, 550)], 0)):
            usage = Usage()
            assert await answer(generator, prompt, 1, usage) == expected(prompt, 1)
            assert usage.cached_tokens == cached

    on_a_chain(scenario, stretches=Stretches(limits=(301,)), context=1000, room=1000)


def test_another_pipeline_computes_a_long_answer_in_the_same_steps() -> None:
    """There the bits of a token depend on the step that it is computed in."""

    async def tokens(chains: list[RoundingChain], after: int) -> list[int]:
        generator, got = Generator(), list[int]()
        stream = generator.tokens([1, 2, 3], GREEDY, limit=14, usage=Usage())
        async with asyncio.timeout(10), attached(generator, chains[0], stretches=STRETCHES):
            while len(got) < after:
                got.append((await anext(stream)).token_id)
            async with attached(generator, chains[1], epoch=2, stretches=STRETCHES):
                return [*got, *[token.token_id async for token in stream]]

    undisturbed = asyncio.run(tokens([RoundingChain(), RoundingChain()], 14))
    for after in (5, 11):
        assert asyncio.run(tokens([RoundingChain(), RoundingChain()], after)) == undisturbed
