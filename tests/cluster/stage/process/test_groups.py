"""Groups of real stage processes keep what was computed: it moves to and from them, and each rank has its part on the disk."""

import asyncio
from pathlib import Path

import pytest
from fake_cluster import Run
from stage_groups import FOLLOWING, Members, ask, forget_kept, next_prompt, unload
from stage_nodes import KEY, Driver, StageNode, reported, until_soon

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.token import Usage
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.messages import PlanBefore

pytestmark = [pytest.mark.slow, pytest.mark.net]

PROMPT = [n % 61 for n in range(600)]
NEW = (
    1 + FOLLOWING + 7
)  # with the last token of the answer before, and the next answer but its last one


@pytest.fixture(autouse=True)
def nothing_is_kept(desk: StageNode, laptop: StageNode) -> None:
    forget_kept(desk, laptop)


async def said_alone(model: LocalModel, node: StageNode, prompts: int) -> list[list[int]]:
    """What one process with whole layers says in a conversation of so many prompts, and the next prompt, last."""
    whole = Members(model, [node])
    await whole.load(1)
    async with whole.driver(node, 1) as pipeline:
        generator = Generator()
        generator.attach(pipeline, context=1024)
        said, prompt = list[list[int]](), PROMPT
        for _ in range(prompts):
            said.append(await ask(generator, prompt))
            prompt = next_prompt(prompt, said[-1])
    await unload(node)
    forget_kept(node)
    return said


def test_a_conversation_moves_from_whole_layers_to_groups_and_back(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        plans = (
            Members(model, [desk]),
            Members(model, [desk, laptop], 1, 1),
            Members(model, [laptop, desk], 2, 1),
            Members(model, [laptop]),
        )
        expected = await said_alone(model, desk, len(plans))
        generator, prompt = Generator(), PROMPT
        before: Members | None = None
        ending: Driver | None = None
        last: Pipeline | None = None
        for epoch, members in enumerate(plans, 2):
            if last is not None:
                await last.drain(5.0)
            await members.load(epoch, before)
            driver = members.driver(desk, epoch)
            pipeline = await driver.__aenter__()
            generator.attach(pipeline, context=1024)
            if last is not None and ending is not None:
                last.shut()
                brought = await generator.bring(last, pipeline).run()
                assert (brought.conversations, brought.again) == (1, 0)
                await ending.__aexit__()
            answer = await ask(generator, prompt)
            assert answer == expected[epoch - 2]
            assert pipeline.sent_tokens == (len(PROMPT) + 7 if last is None else NEW)
            prompt, before, ending, last = next_prompt(prompt, answer), members, driver, pipeline
        assert ending is not None
        await ending.__aexit__()
        await unload(desk, laptop)
        assert desk.failures == laptop.failures == []

    run(main())


def test_a_conversation_is_computed_again_when_a_rank_is_killed_while_it_moves(
    desk: StageNode, laptop: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        expected = await said_alone(model, desk, 2)
        mac = StageNode("Mac", tmp_path, desk.identity)
        process = await mac.start()
        group, whole = Members(model, [desk, mac], 1, 1), Members(model, [laptop])
        generator = Generator()
        await group.load(2)
        async with group.driver(desk, 2) as first:
            generator.attach(first, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            await first.drain(5.0)
            await whole.load(3, group)
            async with whole.driver(desk, 3) as second:
                process.suspend()  # so that it sends nothing
                first.shut()
                generator.attach(second, context=1024)
                bringing = asyncio.create_task(generator.bring(first, second).run())
                (conversation,) = generator._conversations  # pyright: ignore[reportPrivateUsage]
                await until_soon(lambda: conversation.last_step >= 2)
                process.kill()
                assert (await bringing).again == 1
                prompt = next_prompt(PROMPT, expected[0])
                assert await ask(generator, prompt) == expected[1]
                assert second.sent_tokens == len(prompt) + 7
        await mac.handle.stop()
        await unload(desk, laptop)

    run(main())


def test_a_conversation_goes_on_elsewhere_when_a_rank_is_killed_while_its_part_comes(
    desk: StageNode, laptop: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        expected = await said_alone(model, desk, 2)
        mac = StageNode("Mac", tmp_path, desk.identity)
        process = await mac.start()
        whole, group = Members(model, [laptop]), Members(model, [desk, mac], 1, 1)
        generator = Generator()
        await whole.load(2)
        async with whole.driver(desk, 2) as first:
            generator.attach(first, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            await first.drain(5.0)
            await group.load(3, whole)
            async with group.driver(desk, 3) as second:
                process.suspend()  # so that it takes nothing
                first.shut()
                generator.attach(second, context=1024)
                bringing = asyncio.create_task(generator.bring(first, second).run())
                (conversation,) = generator._conversations  # pyright: ignore[reportPrivateUsage]
                await until_soon(lambda: conversation.last_step >= 2)
                process.kill()
                await reported(desk, second)
                assert (await bringing).conversations == 0
        await whole.load(4)
        async with whole.driver(desk, 4) as third:
            generator.attach(third, context=1024)
            prompt = next_prompt(PROMPT, expected[0])
            assert await ask(generator, prompt) == expected[1]
            assert third.sent_tokens == len(prompt) + 7
        await mac.handle.stop()
        await unload(desk, laptop)

    run(main())


def test_a_group_takes_the_conversations_of_a_replica_that_ends(
    desk: StageNode, laptop: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        expected = await said_alone(model, desk, 2)
        mac = StageNode("Mac", tmp_path, desk.identity)
        await mac.start()
        leaving, heir = Members(model, [mac]), Members(model, [laptop, desk], 1, 1)
        await asyncio.gather(leaving.load(2), heir.load(2))
        async with leaving.driver(desk, 2) as ending, heir.driver(desk, 2) as staying:
            generator = Generator()
            generator.attach(ending, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            generator.attach(staying, context=1024, is_replica=True)
            take = TakeSessions(epoch=2, before=PlanBefore(epoch=2, hops=leaving.hops(), key=KEY))
            await asyncio.gather(*(node.handle.take_sessions(take) for node in (laptop, desk)))
            await ending.drain(5.0)
            bringing = generator.bring(ending, staying)
            ending.shut()
            assert (await bringing.run()).conversations == 1
            assert await ask(generator, next_prompt(PROMPT, expected[0])) == expected[1]
            assert staying.sent_tokens == NEW
        await mac.handle.stop()
        await unload(desk, laptop)

    run(main())


@pytest.mark.parametrize("reads", ["whole", "group"])
def test_a_prompt_that_others_read_is_taken_by_all_ranks_and_given_by_them(
    desk: StageNode, laptop: StageNode, model: LocalModel, tmp_path: Path, run: Run, reads: str
) -> None:
    async def main() -> None:
        ((expected,),) = ((await said_alone(model, desk, 1)),)
        mac = StageNode("Mac", tmp_path, desk.identity)
        await mac.start()
        whole, group = Members(model, [mac]), Members(model, [desk, laptop], 1, 1)
        reading, answering = (whole, group) if reads == "whole" else (group, whole)
        await answering.load(2)
        await reading.load(2, reads_for=answering)
        async with answering.driver(desk, 2) as pipeline, reading.driver(desk, 2) as copy:
            generator = Generator()
            generator.attach(pipeline, context=1024)
            reader = Reader(
                pipeline=copy,
                name="Mac",
                least_tokens=128,
                most_tokens=1024,
                chunk_tokens=lambda _: 200,
            )
            generator.read_with(reader, pipeline)
            assert await ask(generator, PROMPT) == expected
            assert pipeline.sent_tokens == 1 + 7
        await mac.handle.stop()
        await unload(desk, laptop)

    run(main())


def test_each_rank_keeps_its_part_on_the_disk_and_nothing_is_used_that_one_has_lost(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        expected = await said_alone(model, desk, 2)
        group = Members(model, [desk, laptop], 1, 1)
        cached = list[int]()
        for epoch in (2, 3, 4):
            loaded = await group.load(epoch)
            assert all(stage.keeps_sessions for stage in loaded)
            async with group.driver(desk, epoch) as pipeline:
                generator = Generator()
                generator.attach(pipeline, context=1024)
                usage = Usage()
                prompt = PROMPT if epoch == 2 else next_prompt(PROMPT, expected[0])
                tokens = generator.tokens(prompt, Sampling(), limit=8, usage=usage)
                answer = [token.token_id async for token in tokens]
                assert answer == expected[min(epoch - 2, 1)]
                cached.append(usage.cached_tokens)
            await unload(desk, laptop)
            assert all(list(node.sessions.glob("*")) for node in (desk, laptop))
            if epoch == 3:
                forget_kept(laptop)
        assert cached == [0, 576, 0]

    run(main())
