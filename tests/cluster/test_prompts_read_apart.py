"""One computer reads the prompts, and the other one answers: two whole nodes."""

import asyncio
import logging

import msgspec
import pytest
from byte_model import LAYERS
from fake_cluster import Run
from whole_nodes import QUESTION, chat, eventually, kill_engine, load, seen, stages

from potluck.api.prompts import GenerationRequest, TextPrompt
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node
from potluck.errors import InvalidLayersError

pytestmark = [pytest.mark.slow, pytest.mark.net]

ALONE = PlanRequest(layers=(("Desk", LAYERS),), context=1024, scheme="f32")
APART = msgspec.structs.replace(ALONE, prefill=("Laptop",))


def question(first: str) -> GenerationRequest:
    """A prompt of more than 512 tokens."""
    story = first + "".join(f"{n} bottles, " for n in range(55))
    return msgspec.structs.replace(QUESTION, prompt=TextPrompt(story))


def read_by_laptop(caplog: pytest.LogCaptureFixture) -> int:
    """How many prompts."""
    return sum("prompt read by Laptop" in record.getMessage() for record in caplog.records)


def test_the_one_reads_the_other_answers_and_goes_on_alone_when_that_one_is_lost(
    desk: Node, laptop: Node, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [question(first) for first in ("a", "b", "c", "d")]
    caplog.set_level(logging.INFO)

    async def main() -> None:
        await load(desk, APART)
        await eventually(desk, lambda: desk.master.readers.is_ready)
        assert stages(desk) == ["Desk"]
        plan, there = desk.backend.state().model.plan, seen(desk, "Laptop")
        assert plan is not None
        assert "Laptop reads your prompt, Desk writes the answer" in plan.explanation
        assert [(stage.node, stage.layers) for stage in plan.readers] == [("Laptop", (0, LAYERS))]
        assert there is not None
        assert (there.state, there.layers) == ("running", (0, LAYERS))
        answers = [await chat(desk, questions[0])]
        await chat(desk)  # a short prompt
        assert read_by_laptop(caplog) == 1

        answering = asyncio.create_task(chat(desk, questions[1]))
        copy = desk.master.readers.deployment
        assert copy is not None
        assert copy.pipeline is not None
        while not copy.pipeline._steps.first_sent():  # noqa: ASYNC110
            await asyncio.sleep(0)
        kill_engine(laptop)  # in the middle of the prompt
        answers.append(await answering)
        await eventually(desk, lambda: not desk.master.readers.is_ready)
        assert read_by_laptop(caplog) == 1
        assert any("cannot read prompts" in note.text for note in desk.backend.state().notices)

        desk.master.weigh()  # it was lost a moment ago, and is left alone
        assert desk.master.readers.deployment is None
        desk.master.readers._failing.clear()
        await eventually(desk, lambda: seen(desk, "Laptop") is not None)
        desk.master.weigh()
        await eventually(desk, lambda: desk.master.readers.is_ready)
        answers.append(await chat(desk, questions[2]))
        assert read_by_laptop(caplog) == 2

        await load(desk, ALONE)
        assert desk.master.readers.deployment is None
        assert laptop.worker.lease is None
        answers.append(await chat(desk, questions[3]))
        assert read_by_laptop(caplog) == 2
        await desk.backend.unload()

        await load(desk, msgspec.structs.replace(ALONE, context=1023))  # no conversation is known
        assert answers == [await chat(desk, one) for one in questions]

    run(main())


def test_what_cannot_be_is_said(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidLayersError, match="none is left to answer"):
            await load(desk, PlanRequest(prefill=("Desk", "laptop")))
        planned = await desk.backend.plan(PlanRequest(prefill=("desk",), context=1024))
        assert [stage.node for stage in planned.stages] == ["Laptop"]
        assert [stage.node for stage in planned.readers] == ["Desk"]
        assert "Desk reads your prompt, Laptop writes the answer" in planned.explanation

    run(main())
