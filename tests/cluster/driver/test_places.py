"""Answers on several replicas of a model, and what happens when one is lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from chain_answers import GREEDY, answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until

from potluck.cluster.driver.attached import Speed
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Usage
from potluck.errors import PeerLostError

GONE = PeerLostError("Attic is gone.")
SPEED = Speed(token_s=0.05, prompt_token_s=0.05)


@asynccontextmanager
async def replicas(
    count: int, *, is_exact: bool = True, context: int = 2000
) -> AsyncGenerator[tuple[Generator, list[FakeChain], list[Pipeline]], None]:
    """A generator on so many chains that compute the same."""
    generator = Generator()
    chains = [FakeChain() for _ in range(count)]
    async with AsyncExitStack() as stack:
        pipelines = [
            await stack.enter_async_context(
                attached(
                    generator,
                    chain,
                    context=context,
                    room=context,
                    is_exact_in_chunks=is_exact,
                    speed=SPEED,
                    is_replica=number > 0,
                )
            )
            for number, chain in enumerate(chains)
        ]
        yield generator, chains, pipelines


def test_answers_at_once_are_shared_out_and_each_is_right() -> None:
    async def main() -> None:
        async with replicas(2) as (generator, chains, _):
            prompts = [[n, n + 1] for n in range(8)]
            answers = await asyncio.gather(*(answer(generator, one, 9) for one in prompts))
            assert answers == [expected(one, 9) for one in prompts]
            assert [len(chain.opened) for chain in chains] == [4, 4]

    run(main())


def test_a_conversation_comes_back_to_the_replica_that_knows_it() -> None:
    async def main() -> None:
        async with replicas(2) as (generator, chains, _):
            streams = [
                generator.tokens(list(range(n, n + 300)), GREEDY, limit=2, usage=Usage())
                for n in (0, 1000)
            ]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
            assert [len(chain.opened) for chain in chains] == [1, 1]
            usage = Usage()
            following = [*range(1000, 1300), 5, 6]
            assert await answer(generator, following, 3, usage) == expected(following, 3)
            assert usage.cached_tokens == 300
            assert [len(chain.opened) for chain in chains] == [1, 1]

    run(main())


def test_a_conversation_goes_to_another_replica_when_its_own_has_too_much_to_do() -> None:
    async def main() -> None:
        async with replicas(2) as (generator, chains, _):
            first = await answer(generator, [1, 2, 3], 3)
            chains[0].is_silent = True
            waiting = asyncio.create_task(answer(generator, [9, *range(900)], 3))
            await until(lambda: len(chains[0].opened) == 2)
            following = [1, 2, 3, *first, 4]
            assert await answer(generator, following, 3) == expected(following, 3)
            assert chains[0].closed == [chains[0].opened[0]]
            waiting.cancel()
            await asyncio.wait([waiting])

    run(main())


def test_an_answer_whose_replica_is_lost_goes_on_at_another_one() -> None:
    for is_exact in (True, False):

        async def main(is_exact: bool = is_exact) -> None:
            async with replicas(2, is_exact=is_exact) as (generator, chains, pipelines):
                prompt = [4, 5, 6]
                stream = generator.tokens(prompt, GREEDY, limit=9, usage=Usage())
                tokens = [(await anext(stream)).token_id, (await anext(stream)).token_id]
                pipelines[0].fail(GONE)
                tokens += [token.token_id async for token in stream]
                assert tokens == expected(prompt, 9)
                assert len(chains[1].opened) == 1
                generator.detach(pipelines[0])
                assert generator.broken is None
                assert await answer(generator, [8], 3) == expected([8], 3)

        run(main())


def test_when_all_are_lost_answers_say_why() -> None:
    async def main() -> None:
        async with replicas(2) as (generator, _, pipelines):
            generator.detach(pipelines[1])
            pipelines[0].fail(GONE)
            generator.detach(pipelines[0])  # the last one stays, to say why
            assert generator.broken is GONE

    run(main())


def test_a_replica_that_is_about_to_leave_begins_no_answer_while_there_is_another_one() -> None:
    async def main() -> None:
        async with replicas(2) as (generator, chains, pipelines):
            await answer(generator, [1, 2, 3], 3)
            assert not generator.uses(pipelines[0])
            generator.leave(pipelines[0])
            following = [1, 2, 3, *expected([1, 2, 3], 3), 4]
            assert await answer(generator, following, 3) == expected(following, 3)
            assert len(chains[1].opened) == 1
            generator.leave(pipelines[1])  # now no other one is better
            assert await answer(generator, [7], 3) == expected([7], 3)

    run(main())


def test_a_long_prompt_goes_where_it_has_room() -> None:
    async def main() -> None:
        generator, small, large = Generator(), FakeChain(), FakeChain()
        async with (
            attached(generator, small, context=64, room=64),
            attached(generator, large, context=64, room=40, is_replica=True),
        ):
            assert generator.context == 64
            prompt = list(range(50))
            busy = generator.tokens([1], GREEDY, limit=9, usage=Usage())
            await anext(busy)
            assert await answer(generator, prompt, 3) == expected(prompt, 3)
            assert not large.opened
            await busy.aclose()

    run(main())
