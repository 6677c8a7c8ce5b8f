"""Models that programs ask for by name: a whole node, with three models on its disk."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from byte_model import make_byte_model
from fake_cluster import Run, within
from msgspec.structs import replace
from whole_nodes import QUESTION, chat, eventually, folders_of, load, running

from potluck.api.events import Finished, Loading, Piece, Waiting
from potluck.api.prompts import TextPrompt, TokensRequest
from potluck.api.values.hub import FolderRequest
from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.cluster.node import Node
from potluck.errors import BrokenModelError, ModelNotFoundError, NotEnoughMemoryError

pytestmark = [pytest.mark.net, pytest.mark.slow]

Test: TypeAlias = Callable[[Node], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("red", "blue")):
        make_byte_model(folder / name, seed=seed)
    (make_byte_model(folder / "broken") / "model.safetensors").write_bytes(b"\xff" * 100)
    (make_byte_model(folder / "foreign") / "config.json").write_text('{"model_type": "parrot"}')
    make_seeing(folder / "eye")
    return folder


def make_seeing(folder: Path) -> None:
    """Give a model the config of one with a vision tower."""
    file = make_byte_model(folder) / "config.json"
    text = json.loads(file.read_text()) | {"model_type": "mistral", "sliding_window": None}
    eye = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 4,
        "head_dim": 8,
    }
    whole = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "spatial_merge_size": 2,
        "text_config": text,
        "vision_config": eye,
    }
    file.write_text(json.dumps(whole))


@pytest.fixture(scope="module")
def node(
    runner: asyncio.Runner, guide: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node that has found the models."""

    async def start() -> Node:
        node = await stack.enter_async_context(
            running(folders_of(tmp_path_factory.mktemp("home"), "Desk"))
        )
        await node.library.add_folder(FolderRequest(path=str(models)))
        return node

    stack = AsyncExitStack()
    yield runner.run(within(60, start()))
    runner.run(stack.aclose())


@pytest.fixture
def desk(node: Node, run: Run) -> Iterator[Callable[[Test], None]]:
    """Runs a test on the node, which has no model loaded."""
    yield lambda test: run(test(node))
    run(node.backend.unload())


def asking(model: str | None, tokens: int = 8) -> Any:
    return replace(QUESTION, model=model, max_tokens=tokens)


def loaded(node: Node) -> str | None:
    model = node.backend.state().model
    return model.name if model.state == "ready" else None


def test_models_at_hand_are_listed_with_what_their_files_say(
    desk: Callable[[Test], None],
) -> None:
    async def test(node: Node) -> None:
        first, *others = await node.backend.served_models()
        assert (first.is_guide, first.is_loaded) == (True, False)
        assert {"red", "blue", "broken"} <= {model.name for model in others}
        assert "foreign" not in {model.name for model in others}
        red = next(model for model in others if model.name == "red")
        assert (red.context, red.format, red.family) == (1024, "safetensors", "llama")
        assert red.nbytes > red.parameters > 0
        assert {model.name for model in others if model.sees} == {"eye"}
        assert red.sees is False

        await load(node, PlanRequest(model="blue", context=128))
        first, *others = await node.backend.served_models()
        assert (first.name, first.is_loaded, first.context) == ("blue", True, 128)
        assert node.backend.state().served[0].sees is False
        assert "blue" not in {model.name for model in others}
        assert not any(model.is_loaded for model in others)

    desk(test)


def test_model_that_is_asked_for_is_loaded_and_the_chosen_one_comes_back_after_it(
    desk: Callable[[Test], None],
) -> None:
    async def test(node: Node) -> None:
        await load(node, PlanRequest(model="red", context=128))
        events = [event async for event in node.backend.generate(asking("blue"))]
        assert isinstance(events[0], Loading)
        assert events[0].model == "blue"
        assert isinstance(events[-1], Finished)
        assert loaded(node) == "blue"
        assert node.library.chosen.served().name == "red"

        await node.backend.set_role(RoleRequest(idle_unload_s=0.01))
        await eventually(node, lambda: loaded(node) is None)
        await node.backend.set_role(RoleRequest(idle_unload_s=0))
        assert node.backend.state().node.idle_unload_s is None
        await chat(node, asking(None))
        assert loaded(node) == "red"
        assert node.backend.state().model.context == 128  # as it was chosen

    desk(test)


def test_answers_of_two_programs_with_two_models_end_one_after_the_other(
    desk: Callable[[Test], None],
) -> None:
    async def test(node: Node) -> None:
        alone = {name: await chat(node, asking(name, 40)) for name in ("red", "blue")}
        waits: list[int] = []

        async def answer(name: str) -> tuple[str, str]:
            text = ""
            async for event in node.backend.generate(asking(name, 40)):
                if isinstance(event, Waiting):
                    waits.append(event.place)
                if isinstance(event, Piece):
                    text += event.text
            return name, text

        names = ("red", "blue", "red", "blue", "red")
        for name, text in await asyncio.gather(*map(answer, names)):
            assert text == alone[name]
        assert waits

    desk(test)


def test_model_that_cannot_be_loaded_leaves_what_there_was(desk: Callable[[Test], None]) -> None:
    async def test(node: Node) -> None:
        await load(node, PlanRequest(model="red", context=128))
        with pytest.raises(BrokenModelError):
            await chat(node, asking("broken"))
        assert loaded(node) == "red"
        await node.backend.unload()
        with pytest.raises(BrokenModelError):
            await chat(node, asking("broken"))
        with pytest.raises(ModelNotFoundError):
            await chat(node, asking("absent"))
        assert [model.name for model in node.backend.state().served] == ["red"]
        await chat(node, asking(None))
        assert loaded(node) == "red"

    desk(test)


def test_model_that_does_not_fit_leaves_the_next_prompt_to_the_chosen_one(
    desk: Callable[[Test], None],
) -> None:
    async def test(node: Node) -> None:
        await load(node, PlanRequest(model="red", context=128))
        await node.backend.set_role(RoleRequest(memory=1))
        assert all(device.memory_free <= 1 for device in node.processes.devices)
        with pytest.raises(NotEnoughMemoryError):
            await chat(node, asking("blue"))
        await node.backend.set_role(RoleRequest(memory=0))
        await chat(node, asking(None))
        assert loaded(node) == "red"

    desk(test)


def test_client_that_leaves_while_its_model_is_loaded_leaves_the_turn_to_the_next(
    desk: Callable[[Test], None],
) -> None:
    async def test(node: Node) -> None:
        await load(node, PlanRequest(model="red", context=128))
        async with aclosing(node.backend.generate(asking("blue"))) as events:
            assert isinstance(await anext(events), Loading)
        await chat(node, asking("red"))
        tokens = await node.backend.tokens(TokensRequest(prompt=TextPrompt("abc"), model="blue"))
        assert len(tokens.token_ids) == 3
        assert loaded(node) == "blue"

    desk(test)
