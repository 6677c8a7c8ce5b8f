"""Whole nodes in one process, with real TLS and real stage processes, and helpers for tests."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import shared_kernels
from air import Air

from potluck.api.events import Finished, Piece
from potluck.api.prompts import GenerationRequest, SamplingOptions, TextPrompt
from potluck.api.values.schema import Computer, PlanRequest, RoleRequest
from potluck.cluster import node_parts, presence
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.cluster.node import Node
from potluck.cluster.node_parts import NodeDeadlines
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import StageSettings
from potluck.doctor.examination import Looks
from potluck.doctor.facts import Routes
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint
from potluck.settings import Folders, Settings, read_node_file, save_settings
from potluck.system import looks as system
from potluck.wire.messages import DeviceInfo

SPLIT = PlanRequest(layers=(("Desk", 2), ("Laptop", 4)), context=128)  # of the byte model
QUESTION = GenerationRequest(
    prompt=TextPrompt("hello"),
    sampling=SamplingOptions(temperature=0.0),
    max_tokens=8,
    ignore_eos=True,
)


AT_REST = system.Looks(
    is_full_screen=lambda: None,
    idle_s=lambda: None,
    is_on_battery=lambda: None,
    free_share=lambda: None,
    is_hot=lambda: None,
)
"""A computer that nobody uses."""
BLIND = Looks(  # at no network but loopback
    adapters=lambda: (),
    routes=lambda adapters: Routes(default=None, home={}),
    multicast=lambda adapters: (),
    firewall=lambda port: None,
    gateway=lambda: None,
    clock=lambda: None,
)
NO_SETTLING = PlanningDeadlines(settle_s=0.0)


def folders_of(base: Path, name: str, *, memory_limit: int | None = None) -> Folders:
    shared_kernels.share_with(base / name)
    folders = Folders.of(base / name)
    save_settings(folders.settings_file, Settings(name=name, memory_limit=memory_limit))
    return folders


@asynccontextmanager
async def running(
    folders: Folders, planning: PlanningDeadlines = NO_SETTLING, *, hand_over_s: float = 0.0
) -> AsyncGenerator[Node, None]:
    """Yield a running node."""
    node = Node(folders, deadlines=NodeDeadlines(planning=planning, hand_over_s=hand_over_s))
    serving = asyncio.create_task(node.run())
    try:
        while read_node_file(folders) is None and not serving.done():
            await asyncio.wait([serving], timeout=0.01)
        yield node
    finally:
        node.stop()
        await serving


@asynccontextmanager
async def paired(
    base: Path, *, hand_over_s: float = 0.0
) -> AsyncGenerator[tuple[Node, Node], None]:
    """Yield a desk, and a laptop that joined its home."""
    async with (
        running(folders_of(base, "Desk")) as desk,
        running(folders_of(base, "Laptop"), hand_over_s=hand_over_s) as laptop,
    ):
        await laptop.backend.set_role(RoleRequest(worker=True))
        await join(desk, laptop)
        await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
        yield desk, laptop


async def join(desk: Node, laptop: Node) -> None:
    invite = await desk.backend.invite()
    joined = await laptop.backend.join(invite.token)
    assert joined.name == "Desk"
    await eventually(desk, lambda: len(desk.membership.available()) == 1)


async def eventually(node: Node, condition: Callable[[], object]) -> None:
    """Wait until a client of this node would see that the condition is true."""
    revision = node.activity.revision
    while not condition():
        revision = await node.activity.changed(revision)


def half_of(model: Path, *, context: int) -> int:
    """The memory that each of two computers has to lend for this model of six layers in f32."""
    config = ModelConfig.from_dict(json.loads((model / "config.json").read_text()))
    half = stage_footprint(
        config, range(3), embedding=True, head=True, scheme="f32", context=context
    )
    return half.total


async def chat(node: Node, question: GenerationRequest = QUESTION) -> str:
    events = [event async for event in node.backend.generate(question)]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Piece))


async def load(node: Node, request: PlanRequest) -> dict[str, int]:
    """Load a model. Return the bytes that each computer was sent."""
    last = [progress async for progress in node.backend.load(request)][-1]
    assert last.state == "ready"
    return {transfer.name: transfer.sent for transfer in last.nodes}


def seen(node: Node, name: str) -> Computer | None:
    return next((c for c in node.backend.state().computers if c.name == name), None)


def stages(node: Node) -> list[str]:
    plan = node.backend.state().model.plan
    return [stage.node for stage in plan.stages] if plan is not None else []


def kill_engine(node: Node, number: int = 0) -> None:
    """Kill a stage process of the node; 0 is that of the best device."""
    process = node.processes.running()[number]._process
    assert process is not None
    process.kill()


class UnusedEngine(StageHandle):
    """A stage process that is up and is asked for nothing: there is none, since one takes a second to start."""

    async def start(self) -> None:
        self.devices = (DeviceInfo(kind="cpu", memory_total=8 << 30, memory_free=4 << 30),)

    def change(self, settings: StageSettings) -> None:
        pass


def find_in_memory(patch: pytest.MonkeyPatch, guide: Path) -> None:
    """Let new nodes find each other without a network, use this guide, and leave this computer alone."""
    air = Air()
    patch.setattr(node_parts, "looks", lambda: AT_REST)
    patch.setattr(node_parts, "holding", lambda: lambda: None)
    patch.setattr(node_parts, "find_gpus", lambda: ())
    patch.setattr(node_parts, "Discovery", air.discovery)
    patch.setattr(node_parts, "own_interfaces", frozenset)
    patch.setattr(presence, "announced", lambda _: ("127.0.0.1",))
    patch.setattr(node_parts, "guide_folder", lambda: guide)
    patch.setattr(node_parts, "LOOKS", BLIND)
