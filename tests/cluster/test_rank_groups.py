"""Devices that compute layers together as ranks of a group, in real nodes with real stage processes."""

import asyncio
import logging
from collections.abc import Iterator

import msgspec
import psutil
import pytest
from byte_model import LAYERS
from fake_cluster import Run
from whole_nodes import chat, eventually, kill_engine, load

from potluck.api.events import Piece
from potluck.api.prompts import GenerationRequest, SamplingOptions, TextPrompt
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node
from potluck.wire.messages import DeviceId

pytestmark = [pytest.mark.slow, pytest.mark.net]

LONG = GenerationRequest(
    prompt=TextPrompt("hello"),
    sampling=SamplingOptions(temperature=0.0),
    max_tokens=100,
    ignore_eos=True,
)


@pytest.fixture(scope="module", autouse=True)
def two_devices() -> Iterator[None]:
    """Of each computer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POTLUCK_CPUS", "1,1")
        yield


def by_hand(*layers: tuple[str, int]) -> PlanRequest:
    return PlanRequest(layers=layers, scheme="f32", context=1024)


def sizes(node: Node) -> tuple[int, int]:
    """Bytes of the matrices of all layers of the model in force, and of all else that it has."""
    assert node.master.deployment is not None
    entries = node.master.deployment.planned.model.manifest.tensors
    layers = sum(e.nbytes for e in entries if ".layers." in e.name and len(e.shape) == 2)
    return layers, sum(e.nbytes for e in entries) - layers


def groups(node: Node) -> list[tuple[str, str, float]]:
    """Of each stage in force the computer, with whom it computes, and its share."""
    plan = node.backend.state().model.plan
    assert plan is not None
    return [(stage.node, stage.group, stage.share) for stage in plan.stages]


def test_who_computes_together_says_what_one_says_and_goes_on_with_conversations(
    desk: Node, laptop: Node, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "potluck.cluster.master.taking_over")

    async def main() -> None:
        await load(desk, by_hand(("Desk", LAYERS)))
        alone = await chat(desk, LONG)

        sent = await load(desk, by_hand(("Laptop+Desk", LAYERS)))  # rank 0 is the worker
        assert await chat(desk, LONG) == alone
        assert [group for _, group, _ in groups(desk)] == ["Laptop + Desk"] * 2
        assert sum(share for *_, share in groups(desk)) == pytest.approx(1)
        matrices, rest = sizes(desk)
        (own,) = (share for name, _, share in groups(desk) if name == "Laptop")
        assert sent["Laptop"] == pytest.approx(own * matrices + rest, rel=0.1)
        assert laptop.store.nbytes == sent["Laptop"]
        assert laptop.worker.lease is not None
        (stage,) = laptop.worker.lease.stages.values()
        slices = [digest for digest, one in stage.tensors.items() if one.part is not None]

        await load(desk, by_hand(("Laptop", LAYERS)))
        for digest in slices:  # which are in the whole tensors that it has now
            await asyncio.to_thread(laptop.store.discard, digest)
        assert not any((await load(desk, by_hand(("Laptop+Desk", LAYERS)))).values())
        assert await chat(desk, LONG) == alone

        mixed = (("Desk+Desk/cpu:1", 2), ("Laptop", 1), ("Desk/cpu:1+Laptop/cpu:1", 3))
        with pytest.raises(Exception, match="named twice"):
            await load(desk, by_hand(*mixed))
        await load(desk, by_hand(("Desk+Desk/cpu:1", 2), ("Laptop/cpu:1+Laptop", 4)))
        assert await chat(desk, LONG) == alone
        held = [handle.held for handle in laptop.processes.running()]
        assert [h.stage.share.rank for h in held if h and h.stage.share] == [1, 0]
        await load(desk, by_hand(("Laptop", 3), ("Laptop/cpu:1", 3)))
        assert await chat(desk, LONG) == alone
        brought = [text for text in caplog.messages if "taken over" in text]
        assert len(brought) >= 3
        assert all("again=0" in text and "tokens=0" not in text for text in brought)

    run(main())


def test_another_computer_reads_prompts_for_a_group(
    desk: Node, laptop: Node, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "potluck.cluster.driver.reader")
    story = TextPrompt("".join(f"{n} bottles, " for n in range(55)))  # more than 512 tokens
    request = msgspec.structs.replace(LONG, prompt=story, max_tokens=8)
    group = by_hand(("Desk+Desk/cpu:1", LAYERS))

    async def main() -> None:
        await load(desk, by_hand(("Desk", LAYERS)))
        alone = await chat(desk, request)
        await load(desk, msgspec.structs.replace(group, prefill=("Laptop",), context=1023))
        await eventually(desk, lambda: desk.master.readers.is_ready)
        assert await chat(desk, request) == alone
        assert any("prompt read by Laptop" in text for text in caplog.messages)
        await load(desk, by_hand(("Desk", LAYERS)))

    run(main())


def test_a_rank_that_is_lost_costs_no_token_of_an_answer(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, by_hand(("Desk+Laptop", LAYERS)))
        before = await chat(desk, LONG)
        epoch = desk.master.deployment and desk.master.deployment.epoch

        text = ""
        async for event in desk.backend.generate(LONG):
            if isinstance(event, Piece):
                if not text:
                    kill_engine(laptop)
                text += event.text
        assert text == before
        assert desk.master.deployment is not None
        assert desk.master.deployment.epoch != epoch
        await eventually(desk, lambda: laptop.processes.devices)
        await laptop.processes.handle(DeviceId(kind="cpu", index=0))

    run(main())


@pytest.mark.parametrize("loss", ["killed", "hangs"])
def test_ranks_of_one_computer_sum_in_memory_and_an_answer_goes_on_without_one(
    desk: Node, run: Run, loss: str
) -> None:
    """Who hangs is ended by the watchdog; nobody else waits for it longer than that takes."""

    async def main() -> None:
        await load(desk, by_hand(("Desk", LAYERS)))
        alone = await chat(desk, LONG)
        await load(desk, by_hand(("Desk+Desk/cpu:1", LAYERS)))
        assert len(said_of_sums(desk)) >= 2
        assert await chat(desk, LONG) == alone
        epoch = desk.master.deployment and desk.master.deployment.epoch

        text = ""
        async for event in desk.backend.generate(LONG):
            if isinstance(event, Piece):
                if not text:
                    (kill_engine if loss == "killed" else suspend_engine)(desk, 1)
                text += event.text
        assert text == alone
        assert desk.master.deployment is not None
        assert desk.master.deployment.epoch != epoch
        await eventually(desk, lambda: desk.processes.devices)
        await desk.processes.handle(DeviceId(kind="cpu", index=1))

    run(main())


def suspend_engine(node: Node, number: int) -> None:
    """Have a stage process stand still."""
    process = node.processes.running()[number]._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    psutil.Process(process.pid).suspend()


def said_of_sums(node: Node) -> list[str]:
    """What its stage processes have written of how they sum."""
    folder = node.processes._log_folder  # pyright: ignore[reportPrivateUsage]
    logs = folder.glob("engine*.log")
    return [line for log in logs for line in log.read_text().splitlines() if "by=memory" in line]
