"""Conversations whose caches the stages keep on disk go on there, on a new pipeline as well."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from chain_answers import answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until

from potluck.cluster.driver.computed import prefix_digests
from potluck.cluster.driver.generation import Generator, Usage
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline

PROMPT = list(range(700))


def computed(chain: FakeChain) -> int:
    """How many tokens the chain has computed."""
    return sum(forward.tensor.shape[0] for forward in chain.forwards)


def on_stages(
    generator: Generator, chain: FakeChain, *, keeps: bool
) -> AbstractAsyncContextManager[Pipeline]:
    return attached(
        generator, chain, context=2000, room=2000, is_exact_in_chunks=True, keeps_sessions=keeps
    )


def after_a_restart(
    scenario: Callable[[Generator, FakeChain], Awaitable[None]],
    *,
    keeps: bool = True,
    first: list[int] = PROMPT,
) -> FakeChain:
    """Run a scenario on stages that have an answer to this prompt on disk, with a driver that knows nothing."""

    async def main() -> FakeChain:
        before, after = FakeChain(), FakeChain()
        generator = Generator(limits=AnswerLimits())
        async with on_stages(generator, before, keeps=keeps):
            await answer(generator, first, 4)
        after.kept = before.kept
        generator = Generator(limits=AnswerLimits())
        async with asyncio.timeout(10), on_stages(generator, after, keeps=keeps):
            await scenario(generator, after)
        return after

    return run(main())


def test_a_digest_names_its_tokens_and_all_before_them() -> None:
    digests = prefix_digests(PROMPT)

    assert len(digests) == 700 // 64 * 16
    assert digests.startswith(prefix_digests(PROMPT[:300]))
    assert prefix_digests([*PROMPT[:64], 7, *PROMPT[65:]])[16:32] != digests[16:32]
    assert prefix_digests([7, *PROMPT[1:]])[-16:] != digests[-16:]


def test_the_next_turn_after_a_restart_computes_only_what_is_new() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        prompt, usage = [*PROMPT, *expected(PROMPT, 4), 5, 6], Usage()

        assert await answer(generator, prompt, 3, usage) == expected(prompt, 3)

        assert usage.cached_tokens == 640
        assert computed(chain) == len(prompt) - 640 + 2
        assert chain.trims == [640]  # some stages had more

    after_a_restart(scenario)


def test_a_fork_after_a_restart_goes_on_from_what_is_common() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.kept = [PROMPT[:576]]
        prompt, usage = [*PROMPT[:600], 5, 6, 7], Usage()
        assert await answer(generator, prompt, 3, usage) == expected(prompt, 3)
        assert usage.cached_tokens == 576

    after_a_restart(scenario)


def test_a_prompt_that_is_not_kept_is_computed() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        prompt, usage = [9, *PROMPT], Usage()
        assert await answer(generator, prompt, 3, usage) == expected(prompt, 3)
        assert usage.cached_tokens == 0
        short = [8, *PROMPT[:400]]
        assert await answer(generator, short, 3, usage) == expected(short, 3)
        assert len(chain.restores) == 1  # the short one was not asked for

    after_a_restart(scenario)


def test_stages_that_keep_nothing_are_not_asked() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
        assert chain.restores == []
        assert chain.kept == []

    after_a_restart(scenario, keeps=False)


def test_a_cache_that_made_room_for_another_one_comes_back_from_the_disk() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = await answer(generator, PROMPT, 3)
        chain.caches[chain.opened[0]].clear()  # as after an eviction
        prompt = [*PROMPT, *first, 5]
        before = computed(chain)

        assert await answer(generator, prompt, 3) == expected(prompt, 3)

        assert computed(chain) - before < 80  # of 704, with those of a step that was refused
        assert len(chain.restores) == 2

    after_a_restart(scenario)


def test_an_answer_that_is_cancelled_while_caches_are_read_leaves_the_conversation_whole() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        waiting = asyncio.create_task(answer(generator, PROMPT, 3))
        await until(lambda: chain.restores)
        waiting.cancel()
        await asyncio.wait([waiting])
        chain.is_silent = False

        assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)

    after_a_restart(scenario)
