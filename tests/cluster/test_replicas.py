"""A model that is held twice: two whole nodes, each with a complete copy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from fake_cluster import Run
from whole_nodes import QUESTION, chat, eventually, kill_engine, load, paired, seen, stages

from potluck.api.events import Piece
from potluck.api.prompts import GenerationRequest, TextPrompt
from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.node import Node
from potluck.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.net]

TWICE = PlanRequest(context=256, scheme="f32", replicas=2)


def question(text: str, tokens: int = 60) -> GenerationRequest:
    return msgspec.structs.replace(QUESTION, prompt=TextPrompt(text), max_tokens=tokens)


async def twice(desk: Node, laptop: Node) -> None:
    """Load it on both, and wait until both answer."""
    await load(desk, TWICE)
    await eventually(desk, lambda: desk.master.replicas.ready is not None)


async def alone(desk: Node, questions: list[GenerationRequest]) -> list[str]:
    """The answers of one node that knows no conversation."""
    await load(desk, PlanRequest(layers=(("Desk", 6),), context=255, scheme="f32"))
    return [await chat(desk, one) for one in questions]


def answering(node: Node) -> list[int]:
    """How many answers are under way on each replica, the one in force first."""
    deployments = [node.master.deployment, *node.master.replicas.deployments]
    generator = node.master._loader._generator
    assert generator is not None
    return [
        sum(
            each.turn is not None and each.pipeline is one.pipeline
            for each in generator._conversations
        )
        for one in deployments
        if one is not None
    ]


async def begun(node: Node, question: GenerationRequest) -> tuple[asyncio.Task[str], asyncio.Event]:
    """An answer under way, and an event that is set when its first text is there."""
    first = asyncio.Event()

    async def answer() -> str:
        text = ""
        async for event in node.backend.generate(question):
            if isinstance(event, Piece):
                text += event.text
                first.set()
        return text

    return asyncio.create_task(answer()), first


def test_eight_clients_are_answered_by_two_replicas_and_all_are_right(
    desk: Node, laptop: Node, run: Run
) -> None:
    questions = [question(f"client {n}: ", 24) for n in range(8)]

    async def main() -> None:
        await twice(desk, laptop)
        plan = desk.backend.state().model.plan
        assert plan is not None
        assert len(plan.replicas) == 1
        assert {plan.stages[0].node, plan.replicas[0][0].node} == {"Desk", "Laptop"}
        assert "The model is held 2 times" in plan.explanation
        there = seen(desk, "Laptop")
        assert there is not None
        assert (there.state, there.layers) == ("running", (0, 6))
        waiting = [asyncio.create_task(chat(desk, one)) for one in questions]
        while sum(answering(desk)) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert min(answering(desk)) >= 2
        answers = [await one for one in waiting]
        assert answers == await alone(desk, questions)
        assert laptop.worker.lease is None

    run(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_replica_that_is_killed_in_the_middle_of_an_answer_costs_no_letter(
    desk: Node, laptop: Node, run: Run, *, is_first: bool
) -> None:
    questions = [question(f"question {n}: ", 120) for n in range(2)]

    async def main() -> None:
        await twice(desk, laptop)
        under_way = [await begun(desk, one) for one in questions]
        for _, first in under_way:
            await first.wait()
        assert answering(desk) == [1, 1]
        in_force = desk.master.deployment
        assert in_force is not None
        on_desk = in_force.uses(desk.membership.local.node_id)
        kill_engine(desk if on_desk == is_first else laptop)
        answers = [await answer for answer, _ in under_way]

        assert (desk.master.deployment is in_force) == (not is_first)
        assert desk.master.is_ready
        assert len(stages(desk)) == 1
        # It is planned again, and answers again.
        await eventually(desk, lambda: not desk.master.replicas.deployments)
        await eventually(desk, lambda: _look(desk))
        assert await chat(desk, questions[0]) == answers[0]
        assert answers == await alone(desk, questions)

    run(main())


def _look(desk: Node) -> bool:
    """Whether both answer; what was lost a moment ago is not left alone."""
    desk.master.replicas._next = 0.0
    desk.master.replicas._failing.clear()
    desk.master.weigh()
    return desk.master.replicas.ready is not None


def test_a_replica_that_leaves_gives_its_conversations_to_the_other_one_and_nothing_is_computed_again(
    tmp_path: Path, run: Run
) -> None:
    questions = [question(f"question {n}: ", 120) for n in range(2)]
    over = [question(f"{n} is over when the laptop leaves: ", 8) for n in range(2)]

    async def main() -> None:
        async with paired(tmp_path, hand_over_s=30.0) as (desk, laptop):
            await load(desk, PlanRequest(layers=(("Desk", 6),), context=255, scheme="f32"))
            expected = [await chat(desk, one) for one in questions]
            others = [await chat(desk, one) for one in over]
            computed = sent([desk.master.deployment])
            await twice(desk, laptop)
            both = [desk.master.deployment, desk.master.replicas.ready]
            answers = await asyncio.gather(*(chat(desk, one) for one in over))
            assert answers == others
            under_way = [await begun(desk, one) for one in questions]
            for _, first in under_way:
                await first.wait()
            assert answering(desk) == [1, 1]

            await laptop.backend.set_role(RoleRequest(paused=True))
            assert [await answer for answer, _ in under_way] == expected
            await eventually(desk, lambda: not desk.master.replicas.deployments)
            await eventually(laptop, lambda: laptop.worker.lease is None)
            assert stages(desk) == ["Desk"]
            assert sent(both) == computed
            for one, text in zip(over, others, strict=True):
                assert await chat(desk, one) == text
            assert sent(both) == computed + 2 * 8  # the prompt's last token, and 7 of the answer

            await laptop.backend.set_role(RoleRequest(paused=False))
            await eventually(desk, lambda: _look(desk))  # it is back, and holds the model again

    run(main())


def sent(deployments: Sequence[Deployment | None]) -> int:
    """How many tokens these were given to compute."""
    pipelines = [each.pipeline for each in deployments if each is not None]
    return sum(pipeline.sent_tokens for pipeline in pipelines if pipeline is not None)


def test_what_cannot_be_is_said(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        planned = await desk.backend.plan(msgspec.structs.replace(TWICE, replicas=3))
        assert "Your computers have room for 2 of 3 replicas" in planned.explanation
        with pytest.raises(UsageError, match="--prefill says which computers"):
            await desk.backend.plan(msgspec.structs.replace(TWICE, prefill=("Laptop",)))

    run(main())
