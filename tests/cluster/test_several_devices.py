"""Computers with several devices: the CPU is offered as two, each with a real stage process."""

from collections.abc import Callable, Iterator

import pytest
from byte_model import LAYERS
from fake_cluster import Run
from whole_nodes import QUESTION, chat, eventually, kill_engine, load

from potluck.api.events import Piece
from potluck.api.prompts import GenerationRequest, SamplingOptions, TextPrompt
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node
from potluck.errors import InvalidLayersError
from potluck.wire.messages import DeviceId

pytestmark = [pytest.mark.slow, pytest.mark.net]

LONG = GenerationRequest(
    prompt=TextPrompt("hello"),
    sampling=SamplingOptions(temperature=0.0),
    max_tokens=200,
    ignore_eos=True,
)


def by_hand(**layers: int) -> PlanRequest:
    """Layers by place; `_` stands for `/cpu:`."""
    shares = tuple((place.replace("_", "/cpu:"), count) for place, count in layers.items())
    return PlanRequest(layers=shares, scheme="f32", context=1024)


def places(node: Node) -> list[str]:
    plan = node.backend.state().model.plan
    return [f"{stage.node}/{stage.device}" for stage in plan.stages] if plan is not None else []


async def answer_with(node: Node, fault: Callable[[], None]) -> str:
    """The text of an answer at whose first token this happens."""
    text = ""
    async for event in node.backend.generate(LONG):
        if isinstance(event, Piece):
            if not text:
                fault()
            text += event.text
    return text


@pytest.fixture(scope="module", autouse=True)
def two_devices() -> Iterator[None]:
    """Of each computer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POTLUCK_CPUS", "1,1")
        yield


def test_all_devices_are_listed_and_processes_come_on_demand(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await eventually(desk, lambda: desk.processes.devices)
        computers = desk.backend.state().computers
        assert [[(d.kind, d.index) for d in c.devices] for c in computers] == [
            [("cpu", 0), ("cpu", 1)], [("cpu", 0), ("cpu", 1)],
        ]  # fmt: skip
        assert [len(node.processes.running()) for node in (desk, laptop)] == [1, 1]

    run(main())


def test_two_devices_of_a_computer_say_what_one_says(desk: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, by_hand(Desk=LAYERS))
        assert places(desk) == ["Desk/cpu:0"]
        alone = await chat(desk)
        assert len(alone) > 0

        for request, expected in (
            (by_hand(Desk_0=2, Desk_1=4), ["Desk/cpu:0", "Desk/cpu:1"]),
            (by_hand(Desk_1=3, Desk=3), ["Desk/cpu:1", "Desk/cpu:0"]),
            (by_hand(Desk_1=LAYERS), ["Desk/cpu:1"]),
        ):
            assert sum((await load(desk, request)).values()) == 0
            assert places(desk) == expected
            assert await chat(desk) == alone
        processes = {handle._process for handle in desk.processes.running()}
        assert len(processes) == 2

    run(main())


def test_a_worker_takes_a_stage_on_each_of_its_devices(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, by_hand(Desk=LAYERS))
        alone = await chat(desk)
        sent = await load(desk, by_hand(Desk_1=1, Laptop_1=2, Laptop_0=2, Desk_0=1))
        assert places(desk) == ["Desk/cpu:1", "Laptop/cpu:1", "Laptop/cpu:0", "Desk/cpu:0"]
        assert sent["Desk"] == 0
        assert sent["Laptop"] > 0
        assert await chat(desk) == alone
        there = next(c for c in desk.backend.state().computers if c.name == "Laptop")
        assert (there.state, there.layers) == ("running", (1, 5))
        assert laptop.worker.lease is not None
        assert len(laptop.worker.lease.stages) == 2
        assert laptop.worker.lease.is_loaded

        await desk.backend.unload()
        assert laptop.worker.lease is None
        assert all(handle.is_idle for handle in laptop.processes.running())
        again = await load(desk, by_hand(Laptop_1=3, Laptop_0=3))
        assert await chat(desk) == alone
        assert again["Laptop"] > 0  # the ends, which it did not have

    run(main())


def test_a_stage_process_that_is_killed_is_named_and_the_answer_goes_on(
    desk: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, by_hand(Desk_0=2, Desk_1=4))
        before = await chat(desk, LONG)

        assert await answer_with(desk, lambda: kill_engine(desk, 1)) == before
        await eventually(desk, lambda: any("Desk/cpu:1" in text for text in notices(desk)))

    run(main())


def test_a_process_that_a_worker_loses_is_named_and_the_answer_goes_on(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, by_hand(Desk_0=2, Laptop_0=2, Laptop_1=2))
        before = await chat(desk, LONG)

        assert await answer_with(desk, lambda: kill_engine(laptop, 1)) == before
        await eventually(desk, lambda: any("Laptop/cpu:1" in text for text in notices(desk)))

    run(main())


def test_a_process_that_no_plan_uses_is_nobodys_loss(desk: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, by_hand(Desk_0=LAYERS))
        deployment = desk.master.deployment
        await desk.processes.handle(DeviceId(kind="cpu", index=1))
        kill_engine(desk, 1)
        await eventually(desk, lambda: len(desk.processes.running()) == 1)
        assert await chat(desk, QUESTION)
        assert desk.master.deployment is deployment

    run(main())


def test_a_device_that_is_not_there_is_a_sentence(desk: Node, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidLayersError, match="no computer called Desk/cpu:2"):
            await load(desk, by_hand(Desk_2=LAYERS))

    run(main())


def notices(node: Node) -> list[str]:
    return [notice.text for notice in node.backend.state().notices]
