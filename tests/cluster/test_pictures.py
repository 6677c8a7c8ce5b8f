"""A prompt with a picture, from a client's request to the answer of two computers: that of `transformers`."""

import asyncio
import base64
import io
import json
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from byte_model import save_byte_tokenizer
from fake_cluster import Run
from PIL import Image
from seeing_models import SeeingModel, make_seeing_model
from tokenizers import Tokenizer
from whole_nodes import eventually, kill_engine, load

from potluck.api.events import Finished, Piece, Started
from potluck.api.prompts import GenerationRequest
from potluck.api.v1.generation import of_chat
from potluck.api.v1.request_shapes import ChatCompletionRequest
from potluck.api.values.schema import PlanRequest
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.pixel_room import MOST_PREPARED
from potluck.cluster.master import planning
from potluck.cluster.node import Node
from potluck.errors import PromptError
from potluck.plan import viewing
from potluck.plan.placement import make_plan
from potluck.plan.stages import Plan
from potluck.wire.messages import DeviceId
from potluck.wire.picture_messages import GiveRows, ShowPicture

pytestmark = [pytest.mark.slow, pytest.mark.net]

TOKEN = 258
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}|{% endfor %}"
)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    folder = tmp_path_factory.mktemp("seeing")
    model = make_seeing_model("qwen 3", folder, token=TOKEN, vocab_size=260)
    save_byte_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|image_pad|>"])
    assert tokenizer.token_to_id("<|image_pad|>") == TOKEN
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    processor = {"size": {"shortest_edge": 64, "longest_edge": 4096}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def folder_of(seeing: SeeingModel) -> Path:
    return seeing.reference.tensors[0].path.parent


def png(seed: int, size: tuple[int, int] = (39, 26)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def question(*pictures: bytes, text: str = "What is it?") -> GenerationRequest:
    """A client's request, with these pictures before the text."""
    urls = [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in pictures]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {
        "messages": [
            {"role": "user", "content": [*parts, {"type": "text", "text": text}]},
        ],
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
        "logit_bias": {str(TOKEN): -100},  # a model that was trained never writes it
    }
    return of_chat(msgspec.json.decode(json.dumps(body), type=ChatCompletionRequest))


async def ask(node: Node, asked: GenerationRequest) -> tuple[Started, list[int]]:
    events = [event async for event in node.backend.generate(asked)]
    assert isinstance(events[-1], Finished)
    (started,) = (event for event in events if isinstance(event, Started))
    tokens = [one for event in events if isinstance(event, Piece) for one in event.token_ids]
    return started, tokens


def greedy(seeing: SeeingModel, file: bytes, started: Started) -> list[int]:
    """The tokens of `transformers` with its own processor of pictures."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 4096},
        patch_size=4,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    image = Image.open(io.BytesIO(file))
    seen = processor(images=[image], return_tensors="pt")
    ids = torch.tensor([list(started.prompt_token_ids)])
    found: list[int] = []
    with torch.inference_mode():
        for _ in range(8):
            logits = seeing.reference.model(
                ids, mm_token_type_ids=(ids == TOKEN).int(), **seen
            ).logits[0, -1]
            logits[TOKEN] -= 100
            found.append(int(logits.argmax()))
            ids = torch.cat([ids, torch.tensor([[found[-1]]])], 1)
    return found


def test_the_answer_is_that_of_transformers_and_pictures_count_by_their_content(
    desk: Node, laptop: Node, run: Run, seeing: SeeingModel
) -> None:
    def plan(*layers: tuple[str, int]) -> PlanRequest:
        return PlanRequest(layers=layers, context=256, scheme="f32", model=str(folder_of(seeing)))

    async def main() -> None:
        await load(desk, plan(("Desk+Laptop", 4)))  # each of them reads the picture
        started, tokens = await ask(desk, question(png(1)))
        assert tokens == greedy(seeing, png(1), started)

        await load(desk, plan(("Desk", 1), ("Laptop", 3)))
        started, tokens = await ask(desk, question(png(1)))
        assert TOKEN in started.prompt_token_ids
        assert tokens == greedy(seeing, png(1), started)

        # The same picture again is in the caches; another of the same size is not.
        again, same = await ask(desk, question(png(1)))
        assert same == tokens
        assert again.cached_tokens == len(started.prompt_token_ids) - 1
        other, different = await ask(desk, question(png(2)))
        assert other.prompt_token_ids == started.prompt_token_ids
        assert other.cached_tokens == 0
        assert different == greedy(seeing, png(2), other)

        # Its pixels have their room as long as it is answered.
        room = desk.backend._parts.at_hand._pixels
        assert room.taken == 0
        async with aclosing(desk.backend.generate(question(png(1)))) as events:
            while not isinstance(await anext(events), Piece):
                assert room.taken <= MOST_PREPARED
            assert 0 < room.taken < MOST_PREPARED
        assert room.taken == 0

        # A lost computer is planned around, and the picture is shown to the stages again.
        kill_engine(laptop)
        asked = question(png(1), text="What is it, and where?")
        started, tokens = await ask(desk, asked)
        assert tokens == greedy(seeing, png(1), started)

        with pytest.raises(PromptError, match="Picture 1 is damaged"):
            await ask(desk, question(png(1)[:200]))
        with pytest.raises(PromptError, match="mark"):
            await ask(desk, question(png(1), text="<|image_pad|>"))
        await eventually(desk, lambda: True)

    run(main())


async def killed_while_reading(
    desk: Node, reading: Node, answered: Coroutine[Any, Any, None]
) -> asyncio.Task[None]:
    """Begin to answer, and end the stage that reads the picture in the middle of it."""
    stage = reading.processes.running()[0]._process
    assert stage is not None
    psutil.Process(stage.pid).suspend()
    answering = asyncio.create_task(answered)
    generator = desk.master._loader._generator
    assert generator is not None
    (viewer,) = (place.viewer for place in generator._places._all)
    assert viewer is not None
    while not viewer._readings:  # noqa: ASYNC110
        await asyncio.sleep(0)
    stage.kill()
    return answering


def test_another_computer_reads_pictures_and_the_first_stage_does_when_that_one_is_lost(
    desk: Node, laptop: Node, run: Run, seeing: SeeingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The computers are equally fast here, so that no gain is asked for, and the desk gets all layers."""

    def on_the_desk(*args: Any, **options: Any) -> Plan:
        return make_plan(*args, **options | {"layers": (("Desk", 4),)})

    monkeypatch.setattr(planning, "make_plan", on_the_desk)
    monkeypatch.setattr(viewing, "GAIN", 1e-9)
    monkeypatch.setattr(viewing, "LEAST_GAIN_MS", -1e9)
    shown: list[str] = []
    send = Pipeline.send_picture

    def noted(
        pipeline: Pipeline, message: ShowPicture | GiveRows, payload: bytes, *, rows: int = 0
    ) -> None:
        if isinstance(message, ShowPicture):
            shown.append(message.picture)
        send(pipeline, message, payload, rows=rows)

    monkeypatch.setattr(Pipeline, "send_picture", noted)
    request = PlanRequest(context=256, scheme="f32", model=str(folder_of(seeing)))

    async def answered(file: bytes) -> None:
        started, tokens = await ask(desk, question(file))
        assert tokens == greedy(seeing, file, started)

    async def main() -> None:
        viewers = desk.master.viewers
        await load(desk, request)
        await eventually(desk, lambda: viewers.is_ready)
        plan = desk.backend.state().model.plan
        assert plan is not None
        assert "Pictures are read by Laptop: a large one in" in plan.explanation
        assert laptop.worker.lease is not None
        assert laptop.worker.lease.layers is None
        await answered(png(11))
        assert shown == []

        await (await killed_while_reading(desk, laptop, answered(png(12))))
        assert len(shown) == 1
        await eventually(desk, lambda: not viewers.is_ready)
        assert any("cannot read pictures" in note.text for note in desk.backend.state().notices)
        await answered(png(13))
        assert len(shown) == 2
        await laptop.processes.handle(DeviceId(kind="cpu", index=0))
        await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
        viewers._failing.clear()
        desk.master.weigh()
        await eventually(desk, lambda: viewers.is_ready)
        await answered(png(14))
        assert len(shown) == 2

        monkeypatch.setattr(viewing, "GAIN", 1e9)
        asked = msgspec.structs.replace(request, pictures="laptop")
        await load(desk, asked)
        await eventually(desk, lambda: viewers.is_ready)
        await load(desk, msgspec.structs.replace(request, context=255))
        assert viewers.deployment is None
        monkeypatch.setattr(viewing, "GAIN", 1e-9)
        viewers._weighed = frozenset()  # as if the laptop had come now
        desk.master.weigh()
        await eventually(desk, lambda: viewers.is_ready)
        await answered(png(15))
        assert len(shown) == 2
        await desk.backend.unload()
        assert laptop.worker.lease is None

    run(main())


def test_a_later_stage_reads_pictures_and_answers_go_on_when_its_computer_is_lost(
    desk: Node, laptop: Node, run: Run, seeing: SeeingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    send = Pipeline.send_picture

    def noted(
        pipeline: Pipeline, message: ShowPicture | GiveRows, payload: bytes, *, rows: int = 0
    ) -> None:
        shown.append(type(message).__name__)
        send(pipeline, message, payload, rows=rows)

    monkeypatch.setattr(Pipeline, "send_picture", noted)
    layers, folder = (("Desk", 1), ("Laptop", 3)), str(folder_of(seeing))
    request = PlanRequest(layers=layers, pictures="laptop", context=256, scheme="f32", model=folder)

    async def answered(file: bytes) -> None:
        started, tokens = await ask(desk, question(file))
        assert tokens == greedy(seeing, file, started)

    async def main() -> None:
        viewers = desk.master.viewers
        await load(desk, request)
        await eventually(desk, lambda: viewers.is_ready)
        state = desk.backend.state()
        assert state.model.plan is not None
        assert "Pictures are read by Laptop: a large one in" in state.model.plan.explanation
        (card,) = (each for each in state.computers if each.name == "Laptop")
        assert (card.layers, card.reads_pictures) == ((1, 4), "yes")
        assert laptop.worker.lease is not None
        assert laptop.worker.lease.layers == (1, 4)
        assert card.memory_lent == state.model.plan.stages[1].memory
        await answered(png(21))
        assert shown == ["GiveRows"]
        await answered(png(21))
        assert shown == ["GiveRows"]  # its rows are there

        asking = await killed_while_reading(desk, laptop, answered(png(22)))
        await asking
        await answered(png(23))
        assert shown[-1] == "ShowPicture"
        await eventually(desk, lambda: not viewers.is_ready)

    run(main())
