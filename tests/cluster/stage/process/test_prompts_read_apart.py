"""A prompt is read by one stage process, and its answer comes from another one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_cluster import Run
from stage_nodes import Driver, StageNode

from potluck.api.events import Reading
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.token import Token, Usage
from potluck.ids import SessionId
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling
from potluck.wire.messages import CacheHop, Hop

pytestmark = [pytest.mark.slow, pytest.mark.net]

PROMPT = [n % 61 for n in range(600)]


async def load(answering: StageNode, reading: StageNode, model: LocalModel, epoch: int) -> None:
    """Give both the whole model; the one that reads sends its caches to the other."""
    whole = range(model.config.num_layers)
    await answering.load(answering.stage(model, whole, epoch=epoch, context=1024))
    stage = reading.stage(model, whole, epoch=epoch, context=1024)
    await reading.load(msgspec.structs.replace(stage, cache_hops=(target(answering.hop, whole),)))


def target(hop: Hop, layers: range) -> CacheHop:
    return CacheHop(
        node_id=hop.node_id, addresses=hop.addresses, layers=(layers.start, layers.stop)
    )


@asynccontextmanager
async def apart(
    answering: StageNode, reading: StageNode, model: LocalModel, epoch: int
) -> AsyncGenerator[tuple[Generator, Pipeline, Reader], None]:
    """A generator whose long prompts another computer reads, and the two pipelines."""
    await load(answering, reading, model, epoch)
    async with (
        Driver(answering, answering, epoch=epoch, keeps_sessions=True) as pipeline,
        Driver(answering, reading, epoch=epoch, keeps_sessions=True) as copy,
    ):
        reader = Reader(
            pipeline=copy,
            name="Laptop",
            least_tokens=128,
            most_tokens=1024,
            chunk_tokens=lambda _: 100,
            take_s=5.0,
        )
        generator = Generator()
        generator.attach(pipeline, context=1024)
        generator.read_with(reader, pipeline)
        yield generator, pipeline, reader
    await asyncio.gather(answering.handle.unload(), reading.handle.unload())


async def ask(generator: Generator, prompt: list[int], count: int = 8) -> list[int]:
    tokens = generator.tokens(prompt, Sampling(), limit=count, usage=Usage())
    return [token.token_id async for token in tokens]


async def ask_alone(pipeline: Pipeline, *prompts: list[int]) -> list[list[int]]:
    """The answers of the stages without a reader."""
    generator = Generator()
    generator.attach(pipeline, context=1024)
    return [await ask(generator, prompt) for prompt in prompts]


def steps_of(pipeline: Pipeline, patch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step of a pipeline has from now on."""
    sizes: list[int] = []
    start = pipeline.start_step

    def start_step(session: SessionId, *, tokens: Sequence[int], **others: Any) -> PendingStep:
        sizes.append(len(tokens))
        return start(session, tokens=tokens, **others)

    patch.setattr(pipeline, "start_step", start_step)
    return sizes


def test_an_answer_goes_on_with_the_caches_of_another_computer(
    desk: StageNode,
    laptop: StageNode,
    model: LocalModel,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with apart(desk, laptop, model, 1) as (generator, pipeline, reader):
            other = [7, *PROMPT[:300]]
            counts = steps_of(pipeline, monkeypatch)
            read = steps_of(reader.pipeline, monkeypatch)
            answers = [*await asyncio.gather(ask(generator, PROMPT), ask(generator, other))]
            following = [*other, *answers[1], *PROMPT[5:505]]  # the tokens before are here already
            answers.append(await ask(generator, following))
            short = await ask(generator, PROMPT[1:50])

            assert counts == [1, 1, 1, 49]  # the last token of each prompt; a short one's all
            assert sum(read) == len(PROMPT) + len(other) + len(following) - 3
            prompts = PROMPT, other, following, PROMPT[1:50]
            assert [*answers, short] == await ask_alone(pipeline, *prompts)

    run(main())


def test_when_the_computer_that_reads_is_lost_the_others_read_the_prompt(
    desk: StageNode,
    laptop: StageNode,
    model: LocalModel,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with apart(desk, laptop, model, 2) as (generator, pipeline, reader):
            counts = steps_of(pipeline, monkeypatch)
            prompt = [n % 59 for n in range(500)]  # no test has left it on the disk
            stream = generator.answer(prompt, Sampling(), limit=8, usage=Usage())
            tokens: list[int] = []
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, Token):
                        tokens.append(event.token_id)
                    elif reader.reading and isinstance(event, Reading) and event.tokens >= 100:
                        reader.pipeline.shut()  # as when its computer is gone
            assert counts[0] > 1
            assert reader.pipeline.broken is not None
            following = [9, *prompt]
            answers = [tokens, await ask(generator, following)]
            assert answers == await ask_alone(pipeline, prompt, following)

    run(main())
