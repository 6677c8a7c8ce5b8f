"""Which prompts others read, and what happens when they cannot."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from chain_answers import answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until

from potluck.cluster.driver import reader as readers
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.reader import MOST_PROMPTS, RESTS_S, Reader
from potluck.errors import PeerLostError

PROMPT = list(range(300))


def computed(chain: FakeChain) -> int:
    """How many tokens the chain has computed."""
    return sum(forward.tensor.shape[0] for forward in chain.forwards)


@asynccontextmanager
async def reading(
    *,
    least: int = 100,
    most: int = 1000,
    take_s: float = 5.0,
    is_exact: bool = True,
    alone_s: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[tuple[Generator, FakeChain, FakeChain, Reader], None]:
    """A generator, the chain that answers, the one that reads for it, and the reader."""
    chain, copy, generator = FakeChain(), FakeChain(), Generator()
    chain.reader = copy
    async with (
        attached(Generator(), copy, context=2000, room=2000, is_exact_in_chunks=is_exact) as pipe,
        attached(generator, chain, context=2000, room=2000, is_exact_in_chunks=is_exact) as own,
    ):
        reader = Reader(
            pipeline=pipe,
            name="PC",
            least_tokens=least,
            most_tokens=most,
            chunk_tokens=lambda _: 64,
            take_s=take_s,
            alone_s=lambda total, cached: alone_s,
            clock=clock,
        )
        generator.read_with(reader, own)
        yield generator, chain, copy, reader


def test_others_compute_all_of_a_long_prompt_but_its_last_token() -> None:
    async def main() -> None:
        async with reading() as (generator, chain, copy, _):
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
            assert (computed(copy), computed(chain)) == (299, 1 + 2)
            following = [*PROMPT, *expected(PROMPT, 3), *range(400)]
            assert await answer(generator, following, 3) == expected(following, 3)
            assert computed(chain) == 2 * (1 + 2)
            assert copy.closed == copy.opened

    run(main())


@pytest.mark.parametrize(
    ("prompt", "why"),
    [(PROMPT[:90], "it is short"), (list(range(1200)), "its cache is too large")],
)
def test_other_prompts_are_read_where_they_are_answered(prompt: list[int], why: str) -> None:
    async def main() -> None:
        async with reading() as (generator, _, copy, _):
            assert await answer(generator, prompt, 3) == expected(prompt, 3)
            assert not copy.forwards, why

    run(main())


def test_where_steps_matter_only_a_conversation_without_any_is_read_by_others() -> None:
    async def main() -> None:
        async with reading(is_exact=False) as (generator, _, copy, _):
            first = await answer(generator, PROMPT, 3)
            assert computed(copy) == 299
            following = [*PROMPT, *first, *range(400)]
            assert await answer(generator, following, 3) == expected(following, 3)
            assert computed(copy) == 299

    run(main())


def test_a_third_prompt_does_not_wait_for_two_others() -> None:
    async def main() -> None:
        async with reading() as (generator, _, copy, reader):
            copy.is_silent = True
            waiting = [
                asyncio.create_task(answer(generator, [n, *PROMPT], 3)) for n in range(MOST_PROMPTS)
            ]
            await until(lambda: reader.reading == MOST_PROMPTS)
            assert await answer(generator, [9, *PROMPT], 3) == expected([9, *PROMPT], 3)
            reader.pipeline.fail(PeerLostError("PC is gone."))
            assert [await one for one in waiting] == [
                expected([n, *PROMPT], 3) for n in range(MOST_PROMPTS)
            ]
            assert reader.reading == 0

    run(main())


def test_what_comes_in_part_or_too_late_is_computed_where_the_answer_is() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        async with reading(take_s=0.01, clock=lambda: now) as (generator, chain, copy, _):
            chain.moved = 0
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
            following = [*PROMPT, *expected(PROMPT, 3), *range(400)]
            chain.moved, now = 200, 1000.0  # not even all that it had
            assert await answer(generator, following, 3) == expected(following, 3)
            chain.never_takes, now = True, 2000.0
            assert await answer(generator, [7, *PROMPT], 3) == expected([7, *PROMPT], 3)
            assert computed(copy) == 299 + 702 + 300

    run(main())


def test_an_answer_that_is_cancelled_while_others_read_leaves_the_conversation_whole() -> None:
    async def main() -> None:
        async with reading() as (generator, _, copy, reader):
            copy.is_silent = True
            waiting = asyncio.create_task(answer(generator, PROMPT, 3))
            await until(lambda: reader.reading and copy.forwards)
            waiting.cancel()
            await asyncio.wait([waiting])
            copy.is_silent = False
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)

    run(main())


def test_one_that_takes_longer_than_the_answer_would_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers, "LEAST_S", 0.01)
    now = 0.0

    async def main() -> None:
        nonlocal now
        async with reading(alone_s=0.02, clock=lambda: now) as (generator, _, copy, reader):
            copy.is_silent = True
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
            copy.is_silent, tried = False, len(copy.forwards)
            assert 0 < tried < 5
            assert reader.reading == 0

            assert await answer(generator, [7, *PROMPT], 3) == expected([7, *PROMPT], 3)
            assert len(copy.forwards) == tried
            now = RESTS_S
            copy.is_silent = True
            assert await answer(generator, [8, *PROMPT], 3) == expected([8, *PROMPT], 3)
            assert len(copy.forwards) > tried
            copy.is_silent, tried = False, len(copy.forwards)
            for now in (2 * RESTS_S, 3 * RESTS_S):  # twice as long, the second time
                prompt = [int(now), *PROMPT]
                assert await answer(generator, prompt, 3) == expected(prompt, 3)
                assert (len(copy.forwards) > tried) == (now == 3 * RESTS_S)

    run(main())


def test_caches_that_take_longer_than_the_prompt_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers, "LEAST_S", 0.01)

    async def main() -> None:
        async with reading(take_s=99.0, alone_s=0.02) as (generator, chain, _, _):
            chain.never_takes = True
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)

    run(main())


def test_plans_change_without_waiting_for_a_cache_that_is_on_its_way() -> None:
    async def main() -> None:
        async with reading(take_s=99.0, alone_s=99.0) as (generator, chain, _, _):
            chain.never_takes = True
            asking = asyncio.create_task(answer(generator, PROMPT, 3))
            pipeline = generator._places.choose([1], generator._conversations).pipeline
            await until(lambda: bool(pipeline._steps._steps))  # `take_cache` is under way
            async with asyncio.timeout(10):
                await pipeline.drain(99.0)
            assert pipeline.is_drained
            asking.cancel()
            await asyncio.wait([asking])

    run(main())


def test_a_prompt_that_others_read_is_read_anew_where_the_next_plan_answers() -> None:
    async def main() -> None:
        is_changed = asyncio.Event()
        async with reading() as (generator, _, copy, reader):
            generator._recover = is_changed.wait  # type: ignore[assignment]
            copy.is_silent = True
            asking = asyncio.create_task(answer(generator, PROMPT, 3))
            await until(lambda: reader.reading and copy.forwards)
            chain = FakeChain()
            async with attached(generator, chain, epoch=2, context=2000, room=2000):
                reader.pipeline.fail(PeerLostError("Its plan has ended."))
                is_changed.set()
                assert await asking == expected(PROMPT, 3)
                assert computed(chain) == 300 + 2

    run(main())


def test_of_two_prompts_at_once_that_begin_alike_one_is_read_and_the_other_goes_on_with_it() -> (
    None
):
    async def main() -> None:
        async with reading() as (generator, chain, copy, _):
            prompts = [[*PROMPT, 1], [*PROMPT, 2]]
            answers = await asyncio.gather(*(answer(generator, one, 3) for one in prompts))
            assert answers == [expected(one, 3) for one in prompts]
            assert computed(copy) == 300
            assert computed(chain) == 2 * (1 + 2)

    run(main())


def test_a_prompt_for_whose_caches_there_is_no_room_is_read_where_it_is_answered() -> None:
    async def main() -> None:
        async with reading() as (generator, chain, copy, _):
            chain.has_no_room = True
            assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
            assert not copy.forwards

    run(main())
