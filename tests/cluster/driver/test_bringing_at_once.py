"""When plans change in quick succession, or before all steps have ended, conversations lose nothing."""

import asyncio
from contextlib import AsyncExitStack

from chain_answers import GREEDY, answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until
from moving_home import OTHER, PROMPT, Home, computed, next_chain, settle

from potluck.cluster.driver.attached import Speed
from potluck.cluster.driver.token import Usage
from potluck.errors import PeerLostError


def test_a_prompt_goes_where_the_caches_of_its_conversation_are_on_their_way_to() -> None:
    async def main() -> None:
        home, other = Home(), FakeChain()
        slightly_faster = Speed(token_s=Speed().token_s - 0.001)
        async with home.first() as first:
            over = await answer(home.generator, PROMPT, 3)
            chain = next_chain(home.chain)
            async with (
                home.second(first, chain) as second,
                attached(
                    home.generator,
                    other,
                    context=400,
                    room=400,
                    speed=slightly_faster,
                    is_replica=True,
                ),
            ):
                bringing = home.generator.bring(first, second)
                following = [*PROMPT, *over, 7]
                asking = asyncio.create_task(answer(home.generator, following, 3))
                await settle()
                await bringing.run()
                assert await asking == expected(following, 3)
                assert not other.forwards
                assert computed(chain) == 2 + 2

    run(main())


def test_two_that_end_one_soon_after_the_other_give_their_answers_to_a_third_one() -> None:
    async def main() -> None:
        home, chains = Home(), [FakeChain(), FakeChain()]
        async with AsyncExitStack() as stack:
            ending = [await stack.enter_async_context(home.first())]
            ending += [
                await stack.enter_async_context(
                    attached(home.generator, chain, context=400, room=400, is_replica=True)
                )
                for chain in chains
            ]
            streams = [
                home.generator.tokens(prompt, GREEDY, limit=30, usage=Usage())
                for prompt in (PROMPT, OTHER)
            ]
            got = [[(await anext(stream)).token_id] for stream in streams]
            heir, so_far = ending.pop(), computed(home.chain) + computed(chains[0])
            chains[1].reader = home.chain
            home.chain.caches |= chains[0].caches  # where the heir finds what either had
            running = []
            for pipeline in ending:
                await pipeline.drain(5.0)
                bringing = home.generator.bring(pipeline, heir)
                pipeline.fail(PeerLostError("It leaves."))
                running.append(asyncio.create_task(bringing.run()))
            home.chain.caches |= chains[0].caches
            for tokens, stream in zip(got, streams, strict=True):
                tokens += [token.token_id async for token in stream]
            assert got == [expected(PROMPT, 30), expected(OTHER, 30)]
            assert [(await one).conversations for one in running] == [1, 1]
            assert so_far + computed(chains[1]) < 100 + 80 + 2 * 30

    run(main())


def test_what_all_stages_have_comes_along_also_if_a_step_did_not_end_in_time() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            stream = home.generator.tokens(PROMPT, GREEDY, limit=30, usage=Usage())
            got = [(await anext(stream)).token_id for _ in range(9)]
            home.chain.is_silent, sent = True, len(home.chain.forwards)
            asking = asyncio.create_task(anext(stream))
            await until(lambda: len(home.chain.forwards) > sent)
            (cache,) = home.chain.caches.values()
            cache.append(0)  # of the step that does not end, in the first stages
            chain = next_chain(home.chain)
            async with home.second(first, chain, drain_s=0.01) as second:
                assert not first.is_drained
                running = asyncio.create_task(home.generator.bring(first, second).run())
                home.is_changed.set()
                got += [(await asking).token_id, *[token.token_id async for token in stream]]
                assert got == expected(PROMPT, 30)
                assert (await running).conversations == 1
                assert computed(chain) < 30

    run(main())
