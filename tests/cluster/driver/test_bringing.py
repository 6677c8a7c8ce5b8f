"""When plans change, conversations take their caches along, or are computed again."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from chain_answers import GREEDY, answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until
from moving_home import OTHER, PROMPT, Home, computed, next_chain, settle

from potluck.cluster.driver.attached import Speed
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Usage
from potluck.errors import PeerLostError


def test_an_answer_under_way_and_one_that_is_over_go_on_and_nothing_is_computed_again() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            over = await answer(home.generator, OTHER, 3)
            answering = asyncio.create_task(answer(home.generator, PROMPT, 50))
            await until(lambda: len(home.chain.forwards) > 20)
            chain = next_chain(home.chain)
            async with home.second(first, chain) as second:
                bringing = home.generator.bring(first, second)
                home.is_changed.set()
                brought = await bringing.run()
                assert (brought.conversations, brought.again) == (2, 0)
                assert brought.told.endswith("Nothing is computed again.")
                assert await answering == expected(PROMPT, 50)
                assert computed(home.chain) + computed(chain) == 100 + 49 + 80 + 2
                assert {each.before for each in chain.expected} == {1}
                assert chain.forgets == 1

                following = [*OTHER, *over, 7]
                so_far = computed(chain)
                assert await answer(home.generator, following, 3) == expected(following, 3)
                assert (
                    computed(chain) - so_far == 2 + 2
                )  # the last token of the answer, and the new one

    run(main())


def test_a_replica_that_ends_gives_all_of_it_to_the_one_that_brings_them_whichever_is_faster() -> (
    None
):
    async def main() -> None:
        home, fast = Home(), FakeChain()
        chain = next_chain(home.chain)
        at_once = Speed(token_s=0.001, prompt_token_s=0.0001)

        async def replica(chain: FakeChain, speed: Speed) -> Pipeline:
            return await stack.enter_async_context(
                attached(home.generator, chain, context=400, room=400, speed=speed, is_replica=True)
            )

        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(home.first())
            over = await answer(home.generator, OTHER, 3)
            answering = asyncio.create_task(answer(home.generator, PROMPT, 50))
            await until(lambda: len(home.chain.forwards) > 20)
            second = await replica(chain, Speed())
            await replica(fast, at_once)
            await first.drain(5.0)
            bringing = home.generator.bring(first, second)
            first.fail(PeerLostError("It leaves."))
            brought = await bringing.run()
            home.generator.detach(first)
            assert (brought.conversations, brought.again) == (2, 0)
            assert await answering == expected(PROMPT, 50)
            assert computed(home.chain) + computed(chain) == 100 + 49 + 80 + 2
            assert not fast.forwards
            following = [*OTHER, *over, 7]
            assert await answer(home.generator, following, 3) == expected(following, 3)

    run(main())


@pytest.mark.parametrize("moved", [0, 60], ids=["nothing", "a part"])
def test_what_does_not_come_whole_is_computed_again(moved: int) -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            over = await answer(home.generator, PROMPT, 3)
            chain = next_chain(home.chain)
            chain.moved = moved
            async with home.second(first, chain) as second:
                brought = await home.generator.bring(first, second).run()
                assert (brought.conversations, brought.again) == (0, 1)
                assert brought.told.endswith("It is computed again.")
                following = [*PROMPT, *over, 7]
                assert await answer(home.generator, following, 3) == expected(following, 3)
                assert computed(chain) == len(following) + 2

    run(main())


def test_who_asks_meanwhile_waits_for_the_caches_and_no_longer_than_they_may_take() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            over = await answer(home.generator, PROMPT, 3)
            chain = next_chain(home.chain)
            chain.never_takes = True
            async with home.second(first, chain) as second:
                bringing = home.generator.bring(first, second)
                bringing._end = bringing._clock() + 0.05
                following = [*PROMPT, *over, 7]
                asking = asyncio.create_task(answer(home.generator, following, 3))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not chain.forwards
                assert (await bringing.run()).again == 1
                assert await asking == expected(following, 3)

    run(main())


def test_no_more_is_brought_than_one_conversation_may_have() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            await answer(home.generator, OTHER, 3)
            await answer(home.generator, PROMPT, 3)  # the last one used
            chain = next_chain(home.chain)
            async with home.second(first, chain, room=150) as second:
                brought = await home.generator.bring(first, second).run()
                assert (brought.conversations, brought.tokens, brought.again) == (1, 102, 1)

    run(main())


def test_when_the_new_plan_breaks_too_the_answer_goes_on_with_a_third_one() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            answering = asyncio.create_task(answer(home.generator, PROMPT, 30))
            await until(lambda: len(home.chain.forwards) > 10)
            chain, third = next_chain(home.chain), FakeChain()
            chain.never_takes = True
            async with home.second(first, chain) as second:
                running = asyncio.create_task(home.generator.bring(first, second).run())
                home.is_changed.set()
                await until(lambda: chain.expected)
                home.is_changed.clear()
                second.fail(PeerLostError("Laptop is gone."))
                assert (await running).conversations == 0
                async with attached(home.generator, third, epoch=3, context=400, room=400):
                    home.is_changed.set()
                    assert await answering == expected(PROMPT, 30)

    run(main())


def test_steps_that_were_not_sent_when_a_plan_ends_are_not_sent_any_more() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            answering = asyncio.create_task(answer(home.generator, PROMPT, 50))
            await until(lambda: len(home.chain.forwards) > 10)
            await first.drain(5.0)
            sent, cached = len(home.chain.forwards), len(next(iter(home.chain.caches.values())))
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(home.chain.forwards) == sent
            (conversation,) = home.generator._conversations
            assert conversation.arrived == cached
            answering.cancel()
            await asyncio.wait([answering])

    run(main())


def test_what_was_not_sent_when_a_plan_ends_is_not_taken_for_computed_if_its_request_ends_then() -> (
    None
):
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            await answer(home.generator, PROMPT, 3)
            await first.drain(5.0)
            edited = [*PROMPT[:60], *range(500, 535)]
            asking = asyncio.create_task(answer(home.generator, edited, 3))
            await settle()
            first.shut()
            await settle()
            asking.cancel()
            await asyncio.wait([asking])
            chain = next_chain(home.chain)
            async with attached(home.generator, chain, epoch=2, context=400, room=400) as second:
                await home.generator.bring(first, second).run()
                following = [*edited, 7]
                assert await answer(home.generator, following, 3) == expected(following, 3)

    run(main())


def test_who_gives_up_while_the_caches_come_leaves_the_conversation_to_the_next_one() -> None:
    async def main() -> None:
        home = Home(AnswerLimits(conversations=1))
        async with home.first() as first:
            over = await answer(home.generator, PROMPT, 3)
            chain = next_chain(home.chain)
            chain.never_takes = True
            async with home.second(first, chain) as second:
                bringing = home.generator.bring(first, second)
                bringing._end = bringing._clock() + 0.05
                running = asyncio.create_task(bringing.run())
                following = [*PROMPT, *over, 7]
                asking = asyncio.create_task(answer(home.generator, following, 3))
                await settle()
                asking.cancel()
                await asyncio.wait([asking])
                await running
                assert not home.generator.uses(second)
                assert await answer(home.generator, following, 3) == expected(following, 3)

    run(main())


def test_an_answer_that_is_given_up_while_its_caches_come_begins_anew_whatever_comes_later() -> (
    None
):
    async def main() -> None:
        home = Home()
        async with home.first(is_exact_in_chunks=True) as first:
            answering = asyncio.create_task(answer(home.generator, PROMPT, 50))
            await until(lambda: len(home.chain.forwards) > 20)
            chain = next_chain(home.chain)
            chain.never_takes = True
            async with home.second(first, chain, is_exact_in_chunks=True) as second:
                running = asyncio.create_task(home.generator.bring(first, second).run())
                home.is_changed.set()
                await until(lambda: chain.expected)
                await settle()
                (name,) = chain.caches
                chain.caches[name][:] = home.chain.caches[name][: chain.expected[0].end]
                answering.cancel()
                await asyncio.wait([answering])
                chain.never_takes = False
                other = [*PROMPT[:90], *range(300, 360)]
                assert await answer(home.generator, other, 3) == expected(other, 3)
                assert (await running).again == 1

    run(main())


def test_a_conversation_that_has_gone_to_a_replica_meanwhile_is_left_alone() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            other = await answer(home.generator, OTHER, 3)
            await answer(home.generator, PROMPT, 3)  # it comes first
            chain, third = next_chain(home.chain), FakeChain()
            chain.never_takes = True
            async with (
                home.second(first, chain) as second,
                attached(
                    home.generator, third, epoch=2, context=400, room=400, is_replica=True
                ) as replica,
            ):
                bringing = home.generator.bring(first, second)
                bringing._end = bringing._clock() + 0.1
                running = asyncio.create_task(bringing.run())
                await until(lambda: chain.expected)
                home.generator.leave(second)
                following = [*OTHER, *other, 7]
                stream = home.generator.tokens(following, GREEDY, limit=40, usage=Usage())
                got = [(await anext(stream)).token_id]
                assert home.generator.uses(replica)
                assert (await running).again == 2
                got += [token.token_id async for token in stream]
                assert got == expected(following, 40)
                assert not third.expected

    run(main())


def test_an_answer_is_not_waited_for_when_the_new_plan_has_broken() -> None:
    async def main() -> None:
        home = Home()
        async with home.first() as first:
            stream = home.generator.tokens(PROMPT, GREEDY, limit=30, usage=Usage())
            await anext(stream)  # its reader takes no more
            async with home.second(first, next_chain(home.chain)) as second:
                running = asyncio.create_task(home.generator.bring(first, second).run())
                await settle()
                assert not running.done()
                second.fail(PeerLostError("Laptop is gone."))
                async with asyncio.timeout(30):
                    await running
            await stream.aclose()

    run(main())
