"""The next plan's stage process takes conversations over from others, and some of these are killed meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from fake_cluster import Run
from stage_nodes import KEY, Driver, StageNode, until_soon

from potluck.cluster.driver.bringing import Brought
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import StaleEpochError, UnreachableError
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.messages import CacheHop, PlanBefore

pytestmark = [pytest.mark.slow, pytest.mark.net]

PROMPT = [n % 61 for n in range(600)]
CUT = 2


class Home:
    """Two computers with a stage process each, which may be killed, and one generator."""

    def __init__(self, folder: Path, model: LocalModel) -> None:
        self.model, self.layers = model, model.config.num_layers
        self.desk = StageNode("Desk", folder / "desk")
        self.laptop = StageNode("Laptop", folder / "laptop", self.desk.identity)
        self.processes: dict[str, psutil.Process] = {}
        self.recovered = asyncio.Event()

    def generator(self) -> Generator:
        self.recovered.clear()

        async def recover() -> None:
            await self.recovered.wait()

        return Generator(recover=recover)

    async def start(self, node: StageNode) -> None:
        node.handle = node.new_handle()
        self.processes[node.name] = await node.start()

    def kill(self, node: StageNode) -> None:
        self.processes[node.name].kill()

    async def stop(self) -> None:
        await asyncio.gather(self.desk.handle.stop(), self.laptop.handle.stop())

    async def whole(
        self, node: StageNode, epoch: int, *, reads_for: StageNode | None = None
    ) -> None:
        """Load all layers; those of the plan before, if it was split, are taken over."""
        other = self.laptop if node is self.desk else self.desk
        span = (CUT, self.layers) if node is self.desk else (0, CUT)
        stage = node.stage(self.model, range(self.layers), epoch=epoch, context=1024)
        if reads_for is not None:
            target = CacheHop(
                node_id=reads_for.hop.node_id,
                addresses=reads_for.hop.addresses,
                layers=(0, self.layers),
            )
            stage = msgspec.structs.replace(stage, cache_hops=(target,))
        else:
            hop = CacheHop(node_id=other.hop.node_id, addresses=other.hop.addresses, layers=span)
            before = PlanBefore(epoch=epoch - 1, hops=(hop,), key=KEY)
            stage = msgspec.structs.replace(stage, before=before)
        await node.load(stage)

    @asynccontextmanager
    async def split(self, epoch: int) -> AsyncGenerator[Pipeline, None]:
        """A pipeline of the desk and the laptop."""
        first, last = range(CUT), range(CUT, self.layers)
        await self.laptop.load(self.laptop.stage(self.model, last, epoch=epoch, context=1024))
        stage = self.desk.stage(
            self.model, first, epoch=epoch, context=1024, next_hop=self.laptop.hop
        )
        await self.desk.load(stage)
        last_stage = self.laptop.stage(self.model, last, epoch=epoch, context=1024)
        previous = self.desk.identity.node_id
        await self.laptop.load(msgspec.structs.replace(last_stage, previous=previous))
        driver = Driver(self.desk, self.desk, self.laptop, epoch=epoch, is_exact=True)
        async with driver as pipeline:
            yield pipeline

    def on(self, node: StageNode, epoch: int) -> Driver:
        return Driver(self.desk, node, epoch=epoch, is_exact=True)


async def ask(generator: Generator, prompt: list[int], count: int = 8) -> list[int]:
    tokens = generator.tokens(prompt, Sampling(), limit=count, usage=Usage())
    return [token.token_id async for token in tokens]


async def changed(
    generator: Generator, first: Pipeline, second: Pipeline
) -> "asyncio.Task[Brought]":
    """The second one takes the place of the first one; its stages begin to get what they lack."""
    await first.drain(5.0)
    first.shut()
    generator.attach(second, context=1024)
    return asyncio.create_task(generator.bring(first, second).run())


def is_under_way(generator: Generator) -> bool:
    """Whether the stages were told to take what comes, after they were told to expect it."""
    (conversation,) = generator._conversations
    return conversation.coming is not None and conversation.last_step >= 2


@pytest.fixture
def home(tmp_path: Path, model: LocalModel) -> Home:
    return Home(tmp_path, model)


def test_a_conversation_moves_and_is_computed_again_when_either_side_is_killed_meanwhile(
    home: Home, run: Run
) -> None:
    async def main() -> None:
        desk, laptop = home.desk, home.laptop
        await home.start(desk)
        await home.start(laptop)
        generator = home.generator()
        async with home.split(1) as first:
            generator.attach(first, context=1024)
            answers = [await ask(generator, PROMPT)]
            following = [*PROMPT, *answers[0], 5, 6, 7]
            answers.append(await ask(generator, following))
        expected = answers

        # Nothing is computed again.
        generator = home.generator()
        async with home.split(3) as first:
            generator.attach(first, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            await home.whole(desk, 4)
            async with home.on(desk, 4) as second:
                brought = await (await changed(generator, first, second))
                assert (brought.conversations, brought.again) == (1, 0)
                assert await ask(generator, following) == expected[1]
                assert second.sent_tokens == 4 + 7  # the last token of the answer, the new ones

        # The one that sends is killed.
        generator = home.generator()
        async with home.split(5) as first:
            generator.attach(first, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            await home.whole(desk, 6)
            async with home.on(desk, 6) as second:
                home.processes["Laptop"].suspend()  # so that it cannot send all of it at once
                bringing = await changed(generator, first, second)
                await until_soon(lambda: is_under_way(generator))
                home.kill(laptop)
                assert (await bringing).again == 1
                assert await ask(generator, following) == expected[1]
                assert second.sent_tokens == len(following) + 7

        # The one that receives is killed.
        await home.start(laptop)
        generator = home.generator()
        async with home.split(7) as first:
            generator.attach(first, context=1024)
            assert await ask(generator, PROMPT) == expected[0]
            await home.whole(desk, 8)
            async with home.on(desk, 8) as second:
                home.processes["Laptop"].suspend()
                bringing = await changed(generator, first, second)
                await until_soon(lambda: is_under_way(generator))
                home.kill(desk)
                assert (await bringing).conversations == 0
                home.processes["Laptop"].resume()
                await laptop.load(
                    laptop.stage(home.model, range(home.layers), epoch=9, context=1024)
                )
                async with home.on(laptop, 9) as third:
                    generator.attach(third, context=1024)
                    assert await ask(generator, following) == expected[1]
                    assert third.sent_tokens == len(following) + 7
        await home.stop()

    run(main())


@pytest.mark.parametrize("killed", [None, "Desk", "Laptop"], ids=["nobody", "receiver", "sender"])
def test_a_replica_takes_a_conversation_over_or_it_is_computed_again_when_either_side_is_killed(
    home: Home, run: Run, killed: str | None
) -> None:
    async def main() -> None:
        desk, laptop = home.desk, home.laptop
        whole = range(home.layers)
        for node in (desk, laptop):
            await home.start(node)
            key = KEY if node is laptop else "cd" * 32
            stage = node.stage(home.model, whole, epoch=1, context=1024)
            await node.load(msgspec.structs.replace(stage, key=key))
        hop = CacheHop(**msgspec.structs.asdict(laptop.hop), layers=(0, home.layers))
        take = TakeSessions(epoch=1, before=PlanBefore(epoch=1, hops=(hop,), key=KEY))
        generator = home.generator()
        async with home.on(laptop, 1) as ending, home.on(desk, 1) as staying:
            generator.attach(ending, context=1024)
            answer = await ask(generator, PROMPT)
            following = [*PROMPT, *answer, 5, 6, 7]
            generator.attach(staying, context=1024, is_replica=True)
            await desk.handle.take_sessions(take)
            await ending.drain(5.0)
            if killed:
                home.processes["Laptop"].suspend()
            bringing = generator.bring(ending, staying)
            ending.shut()
            brought = asyncio.create_task(bringing.run())
            if killed:
                await until_soon(partial(is_under_way, generator))
                home.kill(desk if killed == "Desk" else laptop)
            assert (await brought).conversations == (killed is None)
            if killed == "Desk":
                home.processes["Laptop"].resume()
            going_on = home.on(laptop, 1) if killed == "Desk" else nullcontext(staying)
            async with going_on as place:
                if killed == "Desk":
                    generator.attach(place, context=1024)
                before = place.sent_tokens
                tokens = await ask(generator, following)
                new = 4 if killed is None else len(following)  # the last one, and the new ones
                assert place.sent_tokens - before == new + 7
                alone = Generator()
                alone.attach(place, context=1024)
                assert tokens == await ask(alone, following)
        await home.stop()

    run(main())


def test_a_stage_refuses_to_take_over_what_it_cannot_reach_or_for_another_plan(
    home: Home, run: Run
) -> None:
    async def main() -> None:
        desk = home.desk
        await home.start(desk)
        await desk.load(desk.stage(home.model, range(home.layers), epoch=1, context=1024))
        nobody = CacheHop(node_id="ab" * 32, addresses=desk.hop.addresses, layers=(0, 1))
        take = TakeSessions(epoch=1, before=PlanBefore(epoch=1, hops=(nobody,), key=KEY))
        with pytest.raises(UnreachableError):
            await desk.handle.take_sessions(take)
        with pytest.raises(StaleEpochError):
            await desk.handle.take_sessions(msgspec.structs.replace(take, epoch=2))
        async with home.on(desk, 1) as pipeline:  # it is as it was
            generator = home.generator()
            generator.attach(pipeline, context=1024)
            assert len(await ask(generator, PROMPT)) == 8
        await desk.handle.stop()

    run(main())


def test_what_a_process_leaves_that_gave_its_memory_back_moves_unless_it_is_killed_too(
    home: Home, run: Run
) -> None:
    async def main() -> None:
        desk, laptop = home.desk, home.laptop
        await home.start(desk)
        await home.start(laptop)
        expected: list[list[int]] = []
        for epoch, is_killed in ((1, False), (3, True)):
            generator = home.generator()
            async with home.split(epoch) as first:
                generator.attach(first, context=1024)
                answer = await ask(generator, PROMPT)
                following = [*PROMPT, *answer, 5, 6, 7]
                await first.drain(5.0)
                await laptop.handle.unload(leaves_caches=True)
                assert laptop.handle.held is None
                await home.whole(desk, epoch + 1)
                async with home.on(desk, epoch + 1) as second:
                    if is_killed:
                        home.processes["Laptop"].suspend()
                    bringing = await changed(generator, first, second)
                    if is_killed:
                        await until_soon(partial(is_under_way, generator))
                        home.kill(laptop)
                    assert (await bringing).again == is_killed
                    expected.append(await ask(generator, following))
                    computed = len(following) if is_killed else 4  # the last one, and the new ones
                    assert second.sent_tokens == computed + 7
            if not is_killed:
                await laptop.handle.unload()
        assert expected[0] == expected[1]
        await home.stop()

    run(main())


@pytest.mark.parametrize("killed", ["Desk", "Laptop"], ids=["receiver", "sender"])
def test_a_prompt_that_the_laptop_reads_is_answered_when_either_side_is_killed_meanwhile(
    home: Home, run: Run, killed: str
) -> None:
    async def main() -> None:
        desk, laptop = home.desk, home.laptop
        await home.start(desk)
        await home.start(laptop)
        whole = range(home.layers)
        await desk.load(desk.stage(home.model, whole, epoch=1, context=1024))
        await home.whole(laptop, 1, reads_for=desk)
        async with home.on(desk, 1) as pipeline, home.on(laptop, 1) as copy:
            generator = home.generator()
            generator.attach(pipeline, context=1024)
            reader = Reader(
                pipeline=copy,
                name="Laptop",
                least_tokens=128,
                most_tokens=1024,
                chunk_tokens=lambda _: 50,
                take_s=5.0,
            )
            generator.read_with(reader, pipeline)
            tokens: list[int] = []
            events = generator.answer(PROMPT, Sampling(), limit=8, usage=Usage())

            async def answer() -> None:
                async with aclosing(events) as given:
                    tokens.extend([e.token_id async for e in given if isinstance(e, Token)])

            answering = asyncio.create_task(answer())
            await until_soon(lambda: copy.sent_tokens >= 100)  # rows of the first ones are sent
            home.kill(desk if killed == "Desk" else laptop)
            if killed == "Desk":
                await until_soon(lambda: pipeline.broken is not None)
                copy.shut()  # as the master does with readers of a plan that ends
                await laptop.load(laptop.stage(home.model, whole, epoch=2, context=1024))
            going_on = home.on(laptop, 2) if killed == "Desk" else nullcontext(pipeline)
            async with going_on as next_one:
                if killed == "Desk":
                    generator.attach(next_one, context=1024)
                    home.recovered.set()
                await answering
                alone = Generator()
                alone.attach(next_one, context=1024)
                assert tokens == await ask(alone, PROMPT)
        await home.stop()

    run(main())
