"""Pipelines are replaced under answers, which go on."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from chain_answers import GREEDY, answer, attached, expected
from fake_chain import FakeChain
from fake_cluster import run, until
from fake_time import run_at_once

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import (
    ContextExceededError,
    EngineError,
    NotEnoughMemoryError,
    PeerLostError,
)
from potluck.wire.activation_messages import Sampling
from potluck.wire.messages import StepFailed

PROMPT = [1, 2, 3, 4, 5, 6]


def patient(limits: AnswerLimits | None = None) -> Generator:
    """A generator whose answers wait for another pipeline, as long as its limits allow."""

    async def attached_by_hand() -> None:
        while generator.broken is not None:  # noqa: ASYNC110, tests attach without an event
            await asyncio.sleep(0.01)

    generator = Generator(recover=attached_by_hand, limits=limits or AnswerLimits())
    return generator


def stream_of(generator: Generator, *, limit: int = 12) -> AsyncGenerator[Token, None]:
    return generator.tokens(PROMPT, GREEDY, limit=limit, usage=Usage())


async def read(stream: AsyncGenerator[Token, None], count: int) -> list[int]:
    return [(await anext(stream)).token_id for _ in range(count)]


async def rest_of(stream: AsyncGenerator[Token, None]) -> list[int]:
    return [token.token_id async for token in stream]


@pytest.mark.parametrize("read_before", [0, 1, 5, 11, 12])
@pytest.mark.parametrize("is_slow", [False, True])
def test_an_answer_goes_on_where_it_was_on_another_pipeline(
    read_before: int, is_slow: bool
) -> None:
    async def main() -> None:
        generator = Generator()
        old, new = FakeChain(), FakeChain()
        stream = stream_of(generator)
        async with attached(generator, old, epoch=1, stages=2, chunk_tokens=256):
            tokens = await read(stream, read_before)
            if is_slow and tokens:  # steps that were asked for ahead have results by now
                ahead = min(read_before + 2, 12)
                await until(lambda: len(old.forwards) == ahead)
                await asyncio.sleep(0)
            async with attached(generator, new, epoch=7, stages=3, chunk_tokens=4):
                tokens += await rest_of(stream)

        assert tokens == expected(PROMPT, 12)
        assert all(f.epoch == 7 for f in new.forwards)
        # What was computed at once before is computed at once again.
        most = 6 if read_before else 4
        assert all(f.tensor.shape[0] in (most, 6 - most, 1) for f in new.forwards)
        assert bool(new.forwards) == (read_before < (10 if is_slow else 12))

    run(main())


def test_a_prompt_whose_chunks_are_under_way_begins_again_on_another_pipeline() -> None:
    async def main() -> None:
        generator = Generator()
        old, new = FakeChain(), FakeChain()
        old.is_silent = True
        async with attached(generator, old, chunk_tokens=2):
            asking = asyncio.create_task(answer(generator, PROMPT, 3))
            await until(lambda: len(old.forwards) == 3)
            async with attached(generator, new, epoch=2, chunk_tokens=3):
                assert await asking == expected(PROMPT, 3)
        assert [f.position for f in new.forwards] == [0, 2, 4, 6, 7]

    run(main())


def test_an_answer_waits_as_long_as_another_pipeline_is_on_its_way() -> None:
    async def main() -> None:
        generator = patient()
        old, new = FakeChain(), FakeChain()
        stream = stream_of(generator)
        async with attached(generator, old):
            tokens = await read(stream, 5)
            old.is_silent = True
            reading = asyncio.create_task(rest_of(stream))
            await asyncio.sleep(10)
            old.break_off()
            await asyncio.sleep(400)
            assert not reading.done()
        async with attached(generator, new, epoch=2):
            tokens += await reading

        assert tokens == expected(PROMPT, 12)

    run_at_once(main())


@pytest.mark.parametrize("waits_s", [0, 30])
def test_an_answer_without_another_pipeline_ends_with_what_broke_its_own(waits_s: int) -> None:
    async def main() -> None:
        limits = AnswerLimits(replacement_s=waits_s)
        generator = patient(limits) if waits_s else Generator(limits=limits)
        chain = FakeChain()
        async with attached(generator, chain):
            stream = stream_of(generator)
            await read(stream, 5)
            chain.is_silent = True
            reading = asyncio.create_task(rest_of(stream))
            await asyncio.sleep(1)
            chain.break_off()
            began = asyncio.get_running_loop().time()
            with pytest.raises(PeerLostError, match="Laptop stopped answering"):
                await reading
            assert asyncio.get_running_loop().time() - began == pytest.approx(waits_s)

    run_at_once(main())


def test_the_end_names_the_lost_computer_and_why_nobody_takes_its_place() -> None:
    async def in_vain() -> None:
        raise NotEnoughMemoryError(3 << 30, 2 << 30)

    async def main() -> None:
        generator = Generator(recover=in_vain)
        chain = FakeChain()
        async with attached(generator, chain):
            stream = stream_of(generator)
            await read(stream, 5)
            chain.break_off()
            with pytest.raises(PeerLostError, match=r"Laptop stopped answering.*are missing"):
                await rest_of(stream)

    run(main())


def test_a_pipeline_that_breaks_while_it_takes_the_place_of_another_is_replaced_too() -> None:
    async def main() -> None:
        generator = patient()
        chains = [FakeChain() for _ in range(4)]
        for chain in chains[1:3]:
            chain.is_silent = True
        stream = stream_of(generator)
        async with attached(generator, chains[0]):
            tokens = await read(stream, 5)
        reading = asyncio.create_task(rest_of(stream))
        for epoch, chain in enumerate(chains[1:3], 2):
            async with attached(generator, chain, epoch=epoch):
                await until(lambda chain=chain: chain.forwards)
        async with attached(generator, chains[3], epoch=9):
            assert tokens + await reading == expected(PROMPT, 12)

    run(main())


def test_a_prompt_waits_for_the_first_pipeline_too() -> None:
    async def main() -> None:
        generator = patient()
        asking = asyncio.create_task(answer(generator, PROMPT, 3))
        await asyncio.sleep(10)
        async with attached(generator, FakeChain()):
            assert await asking == expected(PROMPT, 3)

    run_at_once(main())


def test_a_prompt_without_any_pipeline_says_that_nothing_is_loaded() -> None:
    async def main() -> None:
        generator = Generator()
        assert generator.context == 0
        with pytest.raises(PeerLostError, match="not loaded"):
            await answer(generator, PROMPT, 3)

    run(main())


def test_a_model_that_is_not_wanted_any_more_ends_who_computes_and_who_waits() -> None:
    async def main() -> None:
        generator = Generator()
        chain = FakeChain()
        async with attached(generator, chain) as pipeline:
            chain.is_silent = True
            computes = asyncio.create_task(answer(generator, PROMPT, 3))
            await until(lambda: chain.forwards)
            generator.close(PeerLostError("It was unloaded."))
            generator.close(PeerLostError("It was unloaded."))
            with pytest.raises(PeerLostError, match="unloaded"):
                await computes
            assert pipeline.broken is not None
        with pytest.raises(PeerLostError, match="unloaded"):
            await answer(generator, PROMPT, 3)

    run(main())


def test_an_answer_that_breaks_every_pipeline_ends() -> None:
    async def main() -> None:
        generator = patient(AnswerLimits(losses=3))
        asking = asyncio.create_task(answer(generator, PROMPT, 3))
        for epoch in range(1, 4):
            chain = FakeChain()
            chain.is_silent = True
            async with attached(generator, chain, epoch=epoch) as pipeline:
                await until(lambda chain=chain: chain.forwards)
                forward = chain.forwards[0]
                pipeline.step_failed(
                    StepFailed(
                        epoch=epoch,
                        session=forward.session,
                        step=forward.step,
                        kind="engine",
                        message="It burns.",
                    )
                )
        async with attached(generator, FakeChain(), epoch=4):
            with pytest.raises(EngineError, match="burns"):
                await asking

    run(main())


def test_an_answer_ends_where_the_context_of_its_new_pipeline_does() -> None:
    async def main() -> None:
        generator = Generator()
        stream = stream_of(generator, limit=50)
        async with attached(generator, FakeChain(), context=64):
            tokens = await read(stream, 3)
            async with attached(generator, FakeChain(), epoch=2, room=12):
                tokens += await rest_of(stream)
        assert tokens == expected(PROMPT, 6)

    run(main())


def test_an_answer_that_is_too_long_for_its_new_pipeline_says_who_has_no_room() -> None:
    async def main() -> None:
        generator = Generator()
        new = FakeChain()
        stream = stream_of(generator)
        async with attached(generator, FakeChain()):
            tokens = await read(stream, 8)
            async with attached(generator, new, epoch=2, room=10):
                with pytest.raises(ContextExceededError, match="Laptop has no memory"):
                    await rest_of(stream)
        assert tokens == expected(PROMPT, 8)
        assert not new.opened

    run(main())


def test_a_prompt_that_waited_for_its_turn_is_checked_against_the_pipeline_it_gets() -> None:
    async def main() -> None:
        generator = Generator(limits=AnswerLimits(conversations=1))
        stream = stream_of(generator)
        async with attached(generator, FakeChain()):
            await read(stream, 3)
            usage = Usage()
            waiting = asyncio.create_task(answer(generator, PROMPT * 2, 1, usage))
            await until(lambda: usage.prompt_tokens)
            async with attached(generator, FakeChain(), epoch=2, room=12):
                await rest_of(stream)  # whose conversation, on the new pipeline, it gets
                with pytest.raises(ContextExceededError, match="Laptop has no memory"):
                    await waiting

    run(main())


def test_the_seed_and_the_history_go_along_to_another_pipeline() -> None:
    async def main() -> None:
        generator = Generator()
        new = FakeChain()
        sampling = Sampling(temperature=0.7, seed=5, repetition_penalty=1.2)
        stream = generator.tokens(PROMPT, sampling, limit=12, usage=Usage())
        async with attached(generator, FakeChain()):
            tokens = await read(stream, 4)
            async with attached(generator, new, epoch=2):
                await rest_of(stream)
        asked = next(f.sampling for f in new.forwards if f.sampling is not None)
        assert asked.seed == 5
        assert asked.history is not None
        # A token that had arrived already was given out before the new pipeline was asked.
        assert list(asked.history)[: 6 + 4] == [*PROMPT, *tokens]

    run(main())


def test_a_conversation_at_rest_goes_on_with_caches_that_another_pipeline_computes() -> None:
    async def main() -> None:
        generator = Generator()
        old, new = FakeChain(), FakeChain()
        async with attached(generator, old):
            first = await answer(generator, PROMPT, 4)
            await answer(generator, [40, 41], 1)
            async with attached(generator, new, epoch=2, is_exact_in_chunks=True):
                usage = Usage()
                prompt = [*PROMPT, *first, 9]
                assert await answer(generator, prompt, 3, usage) == expected(prompt, 3)
                again = await answer(generator, prompt, 3, usage_again := Usage())
        assert usage.cached_tokens == 0
        assert new.opened == old.opened[:1]  # the same conversation
        assert new.forwards[0].position == 0
        assert again == expected(prompt, 3)
        assert usage_again.cached_tokens == len(prompt) - 1

    run(main())


def test_a_slow_reader_of_an_old_pipeline_does_not_leave_its_caches_behind() -> None:
    async def main() -> None:
        generator = Generator()
        new = FakeChain()
        stream = stream_of(generator)
        async with attached(generator, FakeChain()):
            await anext(stream)
            async with attached(generator, new, epoch=2):
                await stream.aclose()
                assert await answer(generator, PROMPT, 3) == expected(PROMPT, 3)
        assert len(new.opened) == 1

    run(main())
