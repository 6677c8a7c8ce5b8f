"""GPUs that their owner keeps from models: invented ones, whole nodes, and real stage processes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_cluster import Run
from whole_nodes import (
    QUESTION,
    SPLIT,
    UnusedEngine,
    chat,
    eventually,
    folders_of,
    join,
    load,
    running,
)

from potluck.api.events import Piece
from potluck.api.values.gpus import Gpu as Shown
from potluck.api.values.gpus import GpuRequest
from potluck.api.values.schema import RoleRequest
from potluck.cluster import node_parts
from potluck.cluster.node import Node
from potluck.cluster.processes import stage_process, supervisor
from potluck.cluster.processes.messages import Start
from potluck.errors import NotFoundError
from potluck.settings import load_settings, save_settings
from potluck.system.graphics import Gpu

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]

GAMES = Gpu("nvidia", "nvidia:GPU-1", "NVIDIA GeForce RTX 4070", "GPU-1")
OLD = Gpu("nvidia", "nvidia:GPU-2", "NVIDIA GeForce GTX 1660", "GPU-2")
LONG = msgspec.structs.replace(QUESTION, max_tokens=64)
OFF, ON = GpuRequest(id=GAMES.id, used=False), GpuRequest(id=GAMES.id, used=True)


class IdleEngine(UnusedEngine):
    """A stage process that computes nothing, and notes which GPUs it sees; None: all of them."""

    seen: list[str | None]

    def __init__(self, start: Start, *, environment: Mapping[str, str], **other: Any) -> None:
        super().__init__(start, environment=environment, **other)
        self.seen.append(environment.get("CUDA_VISIBLE_DEVICES"))


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of each computer."""
    monkeypatch.setattr(node_parts, "find_gpus", lambda: (GAMES, OLD))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What each stage process sees, of which none is real."""
    IdleEngine.seen = []
    monkeypatch.setattr(supervisor, "StageHandle", IdleEngine)
    return IdleEngine.seen


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What each stage process sees, which are real."""
    begun, start = list[str | None](), stage_process.start_process

    def noted(module: str, log: Path, environment: Mapping[str, str], **other: Any) -> Any:
        begun.append(environment.get("CUDA_VISIBLE_DEVICES"))
        return start(module, log, environment, **other)

    monkeypatch.setattr(stage_process, "start_process", noted)
    return begun


def shown(node: Node) -> list[bool]:
    return [gpu.used for gpu in node.backend.state().node.gpus]


def is_back(node: Node, seen: list[str | None], starts: int) -> bool:
    """Whether so many processes were started, and the last one is up."""
    return len(seen) == starts and bool(node.processes.devices) and not node.worker.is_renewing


def test_a_gpu_that_is_turned_off_is_hidden_until_it_is_turned_on_and_over_a_restart(
    tmp_path: Path, run: Run, idle: list[str | None]
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Desk")
        async with running(folders) as desk:
            await eventually(desk, lambda: shown(desk) == [True, True] and desk.processes.devices)
            assert desk.backend.state().node.gpus[0] == Shown(id=GAMES.id, name=GAMES.name)
            with pytest.raises(NotFoundError):
                await desk.backend.use_gpu(GpuRequest(id="nvidia:GPU-9", used=False))

            await desk.backend.use_gpu(OFF)
            assert shown(desk) == [False, True]
            await eventually(desk, lambda: is_back(desk, idle, 2))
            await desk.backend.set_role(RoleRequest(worker=True, threads=1))
            await desk.backend.use_gpu(ON)
            await eventually(desk, lambda: is_back(desk, idle, 3))
            await desk.backend.use_gpu(OFF)
            await eventually(desk, lambda: is_back(desk, idle, 4))
        assert idle == [None, "GPU-2", None, "GPU-2"]
        assert load_settings(folders.settings_file).gpus_off == (GAMES.id,)

        async with running(folders) as desk:
            await eventually(desk, lambda: shown(desk) == [False, True] and desk.processes.devices)
        assert idle[4:] == ["GPU-2"]

    run(main())


def test_a_choice_that_is_taken_back_at_once_ends_nothing(
    tmp_path: Path, run: Run, idle: list[str | None]
) -> None:
    async def main() -> None:
        async with running(folders_of(tmp_path, "Desk")) as desk:
            await eventually(desk, lambda: shown(desk) == [True, True] and desk.processes.devices)
            await desk.backend.use_gpu(OFF)
            await desk.backend.use_gpu(ON)
            await desk.backend.use_gpu(GpuRequest(id=OLD.id, used=False))
            await eventually(desk, lambda: is_back(desk, idle, 2))
        assert idle == [None, "GPU-1"]

    run(main())


def test_a_gpu_that_is_gone_keeps_its_place_and_is_not_shown(
    tmp_path: Path, run: Run, idle: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        folders = folders_of(tmp_path, "Desk")
        settings = load_settings(folders.settings_file)
        save_settings(
            folders.settings_file, msgspec.structs.replace(settings, gpus_off=(GAMES.id,))
        )
        monkeypatch.setattr(node_parts, "find_gpus", lambda: (OLD,))
        async with running(folders) as desk:
            await eventually(desk, lambda: shown(desk) == [True])
            await eventually(desk, lambda: desk.processes.devices)
            await desk.backend.use_gpu(GpuRequest(id=OLD.id, used=False))
            await eventually(desk, lambda: is_back(desk, idle, 2))
        assert idle == [None, "-1"]
        assert load_settings(folders.settings_file).gpus_off == (GAMES.id, OLD.id)

    run(main())


def test_a_worker_helps_on_until_its_master_does_without_it_and_is_back_with_what_is_on(
    tmp_path: Path, run: Run, seen: list[str | None]
) -> None:
    async def main() -> None:
        desks, laptops = (folders_of(tmp_path, name) for name in ("Desk", "Laptop"))
        async with running(desks) as desk, running(laptops, hand_over_s=30.0) as laptop:
            await laptop.backend.set_role(RoleRequest(worker=True))
            await join(desk, laptop)
            await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
            await load(desk, SPLIT)
            before = await chat(desk)
            assert len(laptop.processes.running()) == 1

            await laptop.backend.use_gpu(OFF)
            answering = asyncio.create_task(chat(desk, QUESTION))
            await eventually(laptop, lambda: laptop.worker.is_leaving)
            assert laptop.backend.state().node.leaving
            assert await answering == before
            await eventually(laptop, lambda: is_back(laptop, seen, 3))
            assert seen == [None, None, "GPU-2"]
            notices = [notice.text for notice in desk.backend.state().notices]
            assert "Laptop leaves. Potluck goes on without it." in notices
            await eventually(desk, lambda: desk.membership.available())
            await load(desk, SPLIT)
            whole, texts = await chat(desk, LONG), list[str]()
            async for event in desk.backend.generate(LONG):
                if isinstance(event, Piece):
                    texts.append(event.text)
                    if len(texts) == 1:
                        await desk.backend.use_gpu(OFF)
            assert "".join(texts) == whole  # what was loaded here was loaded again
            await eventually(desk, lambda: is_back(desk, seen, 4))
            assert await chat(desk) == before

    run(main())
