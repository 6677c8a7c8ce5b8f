"""Stage processes that end, or are unloaded, write their sessions, and the next ones read them."""

import shutil
from pathlib import Path

import pytest
from fake_cluster import Run
from stage_nodes import Driver, StageNode

import potluck
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.model.schemes import PACKING_VERSION
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.net]

PROMPT = [n % 61 for n in range(600)]


async def load(desk: StageNode, laptop: StageNode, model: LocalModel, epoch: int) -> None:
    """Cut the model in two. Both stages say that they keep sessions."""
    last = laptop.stage(model, range(2, 4), epoch=epoch, context=1024)
    first = desk.stage(model, range(2), next_hop=laptop.hop, epoch=epoch, context=1024)
    for node, stage in ((laptop, last), (desk, first)):
        loaded, _ = await node.load(stage)
        assert loaded.keeps_sessions


async def ask(generator: Generator, prompt: list[int]) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were not computed."""
    usage = Usage()
    tokens = generator.tokens(prompt, Sampling(), limit=8, usage=usage)
    return [token.token_id async for token in tokens], usage.cached_tokens


def test_a_conversation_goes_on_with_new_processes_and_a_new_driver(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await load(desk, laptop, model, 1)
        async with Driver(desk, desk, laptop, keeps_sessions=True) as pipeline:
            generator = Generator()
            generator.attach(pipeline, context=1024)
            first, cached = await ask(generator, PROMPT)
            assert cached == 0
            prompt, fork = [*PROMPT, *first, 5, 6, 7], [*PROMPT[:590], 5, 6, 7]
            expected = (await ask(generator, prompt))[0], (await ask(generator, fork))[0]

        await laptop.handle.unload()
        await desk.handle.stop()
        desk.handle = desk.new_handle()
        await desk.handle.start()
        assert list(desk.sessions.iterdir())
        assert list(laptop.sessions.iterdir())

        await load(desk, laptop, model, 2)
        async with Driver(desk, desk, laptop, epoch=2, keeps_sessions=True) as pipeline:
            generator = Generator()
            generator.attach(pipeline, context=1024)
            assert await ask(generator, prompt) == (expected[0], 576)
            generator = Generator()  # knows of no conversation that it could copy
            generator.attach(pipeline, context=1024)
            assert await ask(generator, fork) == (expected[1], 576)

            for file in desk.sessions.iterdir():  # what one stage lost, the others cannot use
                file.unlink()
            generator = Generator()
            generator.attach(pipeline, context=1024)
            assert await ask(generator, prompt) == (expected[0], 0)
        await desk.handle.unload()
        await laptop.handle.unload()

    run(main())


def test_a_program_that_packs_otherwise_takes_no_session_of_this_one(
    desk: StageNode,
    model: LocalModel,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its weights would have other bits: their keys and values do not belong to those that were kept."""
    own = Path(potluck.__file__).parent
    other = shutil.copytree(own, tmp_path / "potluck")
    schemes = other / "model" / "schemes.py"
    words = f"\nPACKING_VERSION = {PACKING_VERSION}\n"
    text = schemes.read_text(encoding="utf-8")
    assert words in text
    schemes.write_text(
        text.replace(words, f"\nPACKING_VERSION = {PACKING_VERSION + 1}\n"), encoding="utf-8"
    )

    async def start(program: Path) -> None:
        monkeypatch.setattr(potluck, "__file__", str(program / "__init__.py"))
        await desk.handle.stop()
        desk.handle = desk.new_handle()
        await desk.handle.start()

    async def cached(epoch: int) -> int:
        """How many tokens of the prompt the process finds on the disk."""
        await desk.load(desk.stage(model, range(4), epoch=epoch, context=1024))
        async with Driver(desk, desk, epoch=epoch, keeps_sessions=True) as pipeline:
            generator = Generator()
            generator.attach(pipeline, context=1024)
            _, found = await ask(generator, PROMPT)
        await desk.handle.unload()
        return found

    async def main() -> None:
        assert await cached(11) == 0
        await start(other)
        assert await cached(12) == 0
        await start(own)
        assert await cached(13) == 576

    run(main())
