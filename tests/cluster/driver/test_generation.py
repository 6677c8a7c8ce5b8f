import asyncio
from contextlib import aclosing

import pytest
from chain_answers import GREEDY, answer, expected, on_a_chain
from fake_chain import FakeChain
from fake_cluster import until

from potluck.api.events import Progress, Reading, Waiting
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import ContextExceededError, EngineError, PeerLostError, PromptError


def test_tokens_follow_from_everything_before_them() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await answer(generator, [1, 2, 3], 5) == expected([1, 2, 3], 5)

    on_a_chain(scenario)


def test_a_long_prompt_goes_in_chunks_and_only_the_last_asks_for_a_token() -> None:
    prompt = list(range(10))

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await answer(generator, prompt, 1) == expected(prompt, 1)

        assert [f.tensor.shape for f in chain.forwards] == [(4,), (4,), (2,)]
        assert [f.sampling is not None for f in chain.forwards] == [False, False, True]
        assert [f.prompt_end for f in chain.forwards] == [10, 10, None]

    on_a_chain(scenario, chunk_tokens=4)


def test_who_gives_up_waiting_lets_the_next_one_in() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = generator.tokens([1], GREEDY, limit=9, usage=Usage())
        await anext(first)
        usages = [Usage(), Usage()]
        second, third = (
            asyncio.create_task(answer(generator, [number], 1, usage))
            for number, usage in enumerate(usages, 2)
        )
        await until(lambda: all(usage.prompt_tokens for usage in usages))  # both wait

        await first.aclose()
        second.cancel()  # whose turn it is

        assert await third == expected([3], 1)

    on_a_chain(scenario, limits=AnswerLimits(conversations=1))


def test_a_request_is_told_its_place_until_it_has_the_turn() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = generator.tokens([1], GREEDY, limit=9, usage=Usage())
        await anext(first)
        second = generator.answer([2], GREEDY, limit=1, usage=Usage())
        place = await anext(second)
        assert isinstance(place, Waiting)
        assert (place.place, place.seconds) == (1, None)
        await first.aclose()

        assert [each.token_id async for each in second if isinstance(each, Token)] == expected(
            [2], 1
        )

    on_a_chain(scenario, limits=AnswerLimits(conversations=1))


def test_the_next_turn_sends_only_its_new_tokens() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = await answer(generator, [1, 2, 3], 4)
        before = len(chain.forwards)
        usage = Usage()
        # The last token of an answer was chosen but never run.
        prompt = [1, 2, 3, *first, 50, 51]
        assert await answer(generator, prompt, 2, usage) == expected(prompt, 2)

        assert usage.cached_tokens == 6
        assert chain.forwards[before].position == 6
        assert chain.forwards[before].tensor.shape == (3,)
        assert len(chain.opened) == 1

    on_a_chain(scenario)


def test_what_a_computer_has_no_memory_for_is_refused_before_anything_runs() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        with pytest.raises(ContextExceededError, match=r"length is 10 .* 13: Laptop has no memory"):
            await answer(generator, list(range(1, 13)), 5)
        assert not chain.opened
        assert len(await answer(generator, [1, 2, 3], 50)) == 7

    on_a_chain(scenario, room=10)


def test_an_edited_turn_trims_what_no_longer_holds() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        await answer(generator, [1, 2, 3, 4], 1)
        assert await answer(generator, [1, 2, 3, 9], 2) == expected([1, 2, 3, 9], 2)

    on_a_chain(scenario)


def test_the_same_prompt_again_runs_its_last_token_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        one = await answer(generator, [1, 2, 3], 3)
        assert await answer(generator, [1, 2, 3], 3) == one

    on_a_chain(scenario)


def test_another_conversation_does_not_displace_the_first() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = await answer(generator, [1, 2, 3, 4], 2)
        await answer(generator, [20, 21, 22], 2)
        usage = Usage()
        await answer(generator, [1, 2, 3, 4, *first, 5], 1, usage)
        assert usage.cached_tokens == 5

    on_a_chain(scenario)


def test_the_conversation_used_least_recently_makes_room() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        first = await answer(generator, [10, 11], 1)
        await answer(generator, [20, 21], 1)
        await answer(generator, [10, 11, *first, 12], 1)
        await answer(generator, [30, 31], 1)
        assert list(chain.caches) == [chain.opened[0], chain.opened[2]]

    on_a_chain(scenario, limits=AnswerLimits(conversations=2))


def test_requests_at_once_wait_for_a_free_session() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        prompts = [[start, start + 1] for start in (10, 20, 30, 40, 50)]
        answers = await asyncio.gather(*(answer(generator, prompt, 4) for prompt in prompts))
        assert answers == [expected(prompt, 4) for prompt in prompts]

    on_a_chain(scenario, limits=AnswerLimits(conversations=2))


def test_a_stage_that_lost_the_session_gets_it_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stream = generator.tokens([1, 2, 3], GREEDY, limit=12, usage=Usage())
        tokens = []
        async for token in stream:
            tokens.append(token.token_id)
            if len(tokens) == 2:
                chain.caches.clear()
            if len(tokens) == 8:
                del chain.caches[chain.opened[0]][7:]
        assert tokens == expected([1, 2, 3], 12)
        assert len(chain.opened) == 2
        assert 7 in chain.trims  # of the stages that hold more than the one that asks

    on_a_chain(scenario)


def test_conversations_that_do_not_fit_together_end_one_after_the_other() -> None:
    prompts = [[number] * 8 for number in range(3)]

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.room = 20  # each of them has 16 at its end
        answers = await asyncio.gather(*(answer(generator, prompt, 8) for prompt in prompts))

        assert answers == [expected(prompt, 8) for prompt in prompts]
        assert chain.evictions <= 6  # each of them at most twice: under way, and when it has ended
        assert not any(each.turn for each in generator._conversations)

    on_a_chain(scenario)


def test_an_answer_that_makes_room_for_another_one_in_its_middle_is_told_its_place() -> None:
    prompts = [[number] * 8 for number in range(2)]

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.room = 20  # each of them has 16 at its end

        async def events(prompt: list[int]) -> list[int | Progress]:
            stream = generator.answer(prompt, GREEDY, limit=8, usage=Usage())
            return [
                each.token_id if isinstance(each, Token) else each
                async for each in stream
                if not isinstance(each, Reading)
            ]

        whole, torn = await asyncio.gather(*map(events, prompts))
        if whole != expected(prompts[0], 8):
            whole, torn, prompts[:] = torn, whole, prompts[::-1]
        waiting = [each for each in torn if isinstance(each, Waiting)]

        assert whole == expected(prompts[0], 8)
        assert [each for each in torn if each not in waiting] == expected(prompts[1], 8)
        assert [each.place for each in waiting] == [1]
        assert torn.index(waiting[0]) > 0

    on_a_chain(scenario)


def test_a_reader_that_stopped_reading_does_not_hold_up_the_others() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stopped = generator.tokens([1, 2, 3], GREEDY, limit=20, usage=Usage())
        async with aclosing(stopped):
            await anext(stopped)
            other = generator.tokens([4, 5, 6], GREEDY, limit=5, usage=Usage())
            async with aclosing(other):
                tokens = [(await anext(other)).token_id]
                for cache in chain.caches.values():
                    cache.clear()
                tokens += [token.token_id async for token in other]

        assert tokens == expected([4, 5, 6], 5)

    on_a_chain(scenario, limits=AnswerLimits(other_answer_s=0.0))


def test_a_trim_beyond_a_window_waits_for_no_other_answer() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await answer(generator, [4, 5, 6, 7], 3) == expected([4, 5, 6, 7], 3)
        held = chain.caches[chain.opened[0]]
        stopped = generator.tokens([1, 2, 3], GREEDY, limit=20, usage=Usage())
        async with aclosing(stopped):
            await anext(stopped)  # an answer that is under way, and whose reader does not read on
            held.clear()  # as a stage does that is trimmed to where its window has moved away from
            assert await answer(generator, [4, 5, 6, 8], 3) == expected([4, 5, 6, 8], 3)

    on_a_chain(scenario, limits=AnswerLimits(other_answer_s=3600.0))


def test_what_earlier_stages_hold_is_trimmed_before_it_is_sent_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stream = generator.tokens([1, 2, 3], GREEDY, limit=6, usage=Usage())
        async with aclosing(stream):
            await anext(stream)
            await until(lambda: len(chain.forwards) == 3)
            del chain.caches[chain.opened[0]][3:]
            tokens = [token.token_id async for token in stream]
        assert chain.trims == [3]
        assert [f.position for f in chain.forwards] == [0, 3, 4, 5, 3, 4, 5, 6, 7]
        assert tokens == expected([1, 2, 3], 6)[1:]

    on_a_chain(scenario, is_exact_in_chunks=False)


def test_a_stage_that_always_forgets_is_an_error_and_not_a_loop() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        original = chain.send_nowait

        def forget(message: object, payload: bytes = b"") -> None:
            chain.caches.clear()
            original(message, payload)  # type: ignore[arg-type]

        chain.send_nowait = forget  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="keeps losing"):
            await answer(generator, [1, 2, 3], 2)
        assert len(chain.forwards) == 4

    on_a_chain(scenario, limits=AnswerLimits(losses=4))


def test_the_next_step_is_under_way_while_its_caller_looks_at_a_token() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        async with aclosing(generator.tokens([1, 2, 3], GREEDY, limit=50, usage=Usage())) as stream:
            await anext(stream)
            await until(lambda: len(chain.forwards) == 3)  # the prompt, its token, and the next
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(chain.forwards) == 3  # and no more, whoever reads slowly

    on_a_chain(scenario)


def test_an_answer_ends_with_a_token_that_stops_it() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        tokens = expected([1, 2, 3], 3)
        stream = generator.tokens([1, 2, 3], GREEDY, limit=9, usage=Usage(), stops={tokens[2]})
        assert [token.token_id async for token in stream] == tokens
        assert len(chain.forwards) == 3
        assert chain.caches[chain.opened[0]] == [1, 2, 3, *tokens[:2]]

    on_a_chain(scenario)


def test_a_step_that_nobody_waited_for_is_not_sent_again() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        async with aclosing(generator.tokens([1, 2, 3], GREEDY, limit=50, usage=Usage())) as stream:
            await anext(stream)
            await until(lambda: len(chain.forwards) == 3)
        usage = Usage()
        prompt = [1, 2, 3, *expected([1, 2, 3], 2), 9]
        assert await answer(generator, prompt, 2, usage) == expected(prompt, 2)
        assert usage.cached_tokens == 5

    on_a_chain(scenario)


def test_closing_the_stream_leaves_the_session_usable() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        async with aclosing(generator.tokens([1, 2, 3], GREEDY, limit=50, usage=Usage())) as stream:
            async for _ in stream:
                break
        assert await answer(generator, [1, 2, 3], 3) == expected([1, 2, 3], 3)

    on_a_chain(scenario)


def test_cancelling_in_the_middle_of_a_step_leaves_the_session_usable() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        task = asyncio.create_task(answer(generator, [1, 2, 3], 3))
        await until(lambda: chain.forwards)
        task.cancel()
        await asyncio.wait([task])

        chain.is_silent = False
        assert await answer(generator, [1, 2, 3], 3) == expected([1, 2, 3], 3)

    on_a_chain(scenario)


def test_a_lost_computer_fails_the_answer_under_way_and_those_after() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        chain.is_silent = True
        task = asyncio.create_task(answer(generator, [1, 2, 3], 3))
        await until(lambda: chain.forwards)
        chain.break_off()

        with pytest.raises(PeerLostError, match="Laptop"):
            await task
        with pytest.raises(PeerLostError, match="Laptop"):
            await answer(generator, [1, 2], 1)

    on_a_chain(scenario)


@pytest.mark.parametrize(
    ("prompt", "why"), [([], "empty"), (list(range(64)), "length is 64 .* take 65")]
)
def test_a_prompt_that_cannot_fit_is_refused_before_anything_runs(
    prompt: list[int], why: str
) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        with pytest.raises(PromptError, match=why):
            await answer(generator, prompt, 1)
        assert not chain.forwards

    on_a_chain(scenario)


def test_an_answer_ends_where_the_context_does() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert len(await answer(generator, list(range(60)), 100)) == 4

    on_a_chain(scenario)


@pytest.mark.parametrize("known", [1, 3, 4])
def test_an_answer_goes_on_after_tokens_that_were_given_out_before(known: int) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        tokens = expected([1, 2, 3], 4)
        stream = generator.tokens([1, 2, 3], GREEDY, limit=4, usage=Usage(), known=tokens[:known])
        assert [token.token_id async for token in stream] == tokens[known:]

    on_a_chain(scenario)
