"""Three whole nodes in one process: a worker that leaves says so first, and no answer is late for it."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from fake_cluster import Run
from whole_nodes import (
    QUESTION,
    SPLIT,
    chat,
    eventually,
    folders_of,
    half_of,
    join,
    load,
    running,
    stages,
)

from potluck.api.events import Finished, Piece
from potluck.api.prompts import TextPrompt
from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.cluster.master.planning import PlanningDeadlines
from potluck.cluster.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]

QUICK = PlanningDeadlines(settle_s=0.0, quiet_s=3600.0, improve_s=0.0)
THREE = PlanRequest(layers=(("Desk", 2), ("Laptop", 2), ("Attic", 2)), context=512, scheme="f32")
LONG = msgspec.structs.replace(
    QUESTION, prompt=TextPrompt("".join(f"{n} bottles, " for n in range(12))), max_tokens=40
)
OTHER = msgspec.structs.replace(
    QUESTION, prompt=TextPrompt("".join(f"and {n} glasses, " for n in range(8)))
)
MOVED = "What was computed of the conversation has moved along. Nothing is computed again."


def notices(node: Node) -> list[str]:
    return [notice.text for notice in node.backend.state().notices]


def told_of_leaving(node: Node) -> list[str]:
    return [text for text in notices(node) if "Attic" in text]


def sent_tokens(node: Node) -> int:
    """How many tokens the pipeline in force was given to compute."""
    deployment = node.master.deployment
    assert deployment is not None
    assert deployment.pipeline is not None
    return deployment.pipeline.sent_tokens


async def answer_while(node: Node, happens: asyncio.Event) -> str:
    """The text of a long answer, in the middle of which the event is set."""
    texts: list[str] = []
    last: object = None
    async for last in node.backend.generate(LONG):
        if isinstance(last, Piece):
            texts.append(last.text)
            happens.set()
    assert isinstance(last, Finished)
    return "".join(texts)


def test_a_worker_that_ends_serves_on_until_the_others_do_without_it_and_is_used_when_it_is_back(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        desks, laptops, attics = (folders_of(tmp_path, n) for n in ("Desk", "Laptop", "Attic"))
        async with running(desks, QUICK) as desk, running(laptops) as laptop:
            async with running(attics, hand_over_s=30.0) as attic:
                for worker in (laptop, attic):
                    await worker.backend.set_role(RoleRequest(worker=True))
                    invite = await desk.backend.invite()
                    await worker.backend.join(invite.token)
                await eventually(desk, lambda: len(desk.membership.available()) == 2)
                await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
                await load(desk, THREE)
                await chat(desk, LONG)
                other = await chat(desk, OTHER)
                await load(desk, msgspec.structs.replace(THREE, context=511))  # knows none of these
                expected = await chat(desk, LONG)
                await load(desk, THREE)
                assert await chat(desk, OTHER) == other  # it is over when the attic leaves

                in_the_middle = asyncio.Event()
                answering = asyncio.create_task(answer_while(desk, in_the_middle))
                await in_the_middle.wait()
            # The node of the attic has ended: the others had its layers before.
            assert "Attic" not in stages(desk)
            assert desk.master.is_ready
            assert await answering == expected
            assert 0 < sent_tokens(desk) < 40  # those of the answer that were not chosen yet
            before = sent_tokens(desk)
            assert await chat(desk, OTHER) == other
            assert sent_tokens(desk) == before + 8  # the prompt's last one, and 7 of the answer
            assert told_of_leaving(desk) == ["Attic leaves. Potluck goes on without it."]
            assert MOVED in notices(desk)

            async with running(attics) as attic:
                await attic.backend.set_role(RoleRequest(worker=True))
                await eventually(desk, lambda: "Attic" in stages(desk))
                assert await chat(desk, OTHER) == other
                names = [computer.name for computer in desk.backend.state().computers]
                assert sorted(names) == ["Attic", "Desk", "Laptop"]

    run(main())


def test_a_worker_whose_owner_wants_the_memory_now_gives_it_back_and_nothing_is_computed_again(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        desks, laptops, attics = (folders_of(tmp_path, n) for n in ("Desk", "Laptop", "Attic"))
        async with (
            running(desks, QUICK) as desk,
            running(laptops) as laptop,
            running(attics, hand_over_s=30.0) as attic,
        ):
            for worker in (laptop, attic):
                await worker.backend.set_role(RoleRequest(worker=True))
                invite = await desk.backend.invite()
                await worker.backend.join(invite.token)
            await eventually(desk, lambda: len(desk.membership.available()) == 2)
            await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
            await load(desk, msgspec.structs.replace(THREE, context=511))
            expected, other = await chat(desk, LONG), await chat(desk, OTHER)
            await load(desk, THREE)  # knows none of these
            assert await chat(desk, OTHER) == other

            in_the_middle = asyncio.Event()
            answering = asyncio.create_task(answer_while(desk, in_the_middle))
            await in_the_middle.wait()
            await attic.backend.set_role(RoleRequest(free_now=True))
            await eventually(attic, lambda: attic.worker.lease is None)
            assert await answering == expected
            assert "Attic" not in stages(desk)
            assert 0 < sent_tokens(desk) < 40  # those of the answer that were not chosen yet
            before = sent_tokens(desk)
            assert await chat(desk, OTHER) == other
            assert sent_tokens(desk) == before + 8
            assert MOVED in notices(desk)
            (process,) = attic.processes.running()
            await eventually(attic, lambda: process.held is None)

            await load(desk, msgspec.structs.replace(THREE, layers=(("Laptop+Desk", 6),)))
            assert await chat(desk, OTHER) == other  # all is there before the next change
            # Nobody asks: the shares of the laptop come all the same, and with them what was computed.
            await laptop.backend.set_role(RoleRequest(free_now=True))
            await eventually(desk, lambda: stages(desk) == ["Desk"] and desk.master.is_ready)
            assert await chat(desk, OTHER) == other
            assert sent_tokens(desk) == 8

    run(main())


def test_both_owners_are_told_when_the_model_does_not_fit_without_the_one_that_leaves(
    guide: Path, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        limit = half_of(guide, context=128)
        desks, laptops = (folders_of(tmp_path, n, memory_limit=limit) for n in ("Desk", "Laptop"))
        async with running(desks, QUICK) as desk, running(laptops, hand_over_s=30.0) as laptop:
            await laptop.backend.set_role(RoleRequest(worker=True))
            await join(desk, laptop)
            await load(desk, PlanRequest(workers=1, context=128, scheme="f32"))
            expected = await chat(desk)

            await laptop.backend.set_role(RoleRequest(worker=True, paused=True))
            await eventually(laptop, lambda: notices(laptop)[1:])
            assert notices(laptop)[1:] == [
                "Desk's model does not fit without this computer, which leaves all the same within"
                " 30 seconds. To go on helping, resume sharing."
            ]
            await eventually(desk, lambda: notices(desk))
            (told,) = notices(desk)
            assert told.startswith(
                "Laptop is paused by its owner. The model does not fit without it: "
            )
            assert await chat(desk) == expected  # it helps until then

            await laptop.backend.set_role(RoleRequest(worker=True, paused=False))
            assert await chat(desk) == expected
            assert sorted(stages(desk)) == ["Desk", "Laptop"]
            await desk.backend.unload()  # else the laptop would wait for the desk at its end

    run(main())


def test_a_main_computer_that_its_owner_ends_has_its_helpers_free_their_layers(
    tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Laptop")) as laptop:
            async with running(folders_of(tmp_path, "Desk"), QUICK) as desk:
                await laptop.backend.set_role(RoleRequest(worker=True))
                await join(desk, laptop)
                await load(desk, SPLIT)
                assert laptop.worker.lease is not None
            await eventually(laptop, lambda: laptop.worker.lease is None)

    run(main())
