"""Stage processes wait for an engine, get its folder, and start with the one before if it does not work."""

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from fake_cluster import run, until

from potluck.cluster.processes import supervisor
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.processes.gate import OwnEngine
from potluck.cluster.processes.messages import Start
from potluck.cluster.processes.supervisor import Restarts
from potluck.errors import EngineError, PotluckError
from potluck.wire.messages import DeviceInfo, NodeInfo

ME = NodeInfo(node_id="ab" * 32, name="Desk", version="0", os="Linux", arch="x")
CPU = DeviceInfo(kind="cpu", memory_total=64, memory_free=50)


class Handle:
    """A stage process that computes nothing, and starts with any engine but a broken one."""

    made: ClassVar[list[Path | None]] = []

    def __init__(self, start: Start, *, engine: Path | None = None, **_: object) -> None:
        self.engine = engine
        self.devices: tuple[DeviceInfo, ...] = ()
        Handle.made.append(engine)

    async def start(self) -> None:
        if self.engine == Path("broken"):
            raise EngineError("it does not import torch")
        self.devices = (CPU,)

    async def stop(self) -> None:
        pass


class Gate:
    """An engine that comes while the node runs."""

    def __init__(self, *folders: str) -> None:
        self.folders = [Path(folder) for folder in folders]
        self.there = asyncio.Event()
        self.worked: list[Path] = []

    @property
    def is_there(self) -> bool:
        return self.there.is_set()

    async def wait(self) -> None:
        await self.there.wait()

    def folder(self) -> Path | None:
        return self.folders[0]

    def lacking(self) -> EngineError:
        return EngineError("The engine is not installed.")

    def works(self) -> None:
        self.worked.append(self.folders[0])

    def does_not_work(self) -> bool:
        self.folders.pop(0)
        return bool(self.folders)


def processes(patch: pytest.MonkeyPatch, gate: Gate) -> StageProcesses:
    Handle.made.clear()
    patch.setattr(supervisor, "StageHandle", Handle)

    def died(*_: object) -> None:
        pass

    return StageProcesses(
        identity_folder=Path("identity"),
        me=lambda: ME,
        log_folder=Path("logs"),
        memory_limit=None,
        step_failed=lambda _: None,
        died=died,
        changed=lambda: None,
        restarts=Restarts(pause_s=0.0),
        engine=gate,
    )


def test_without_an_engine_nothing_is_started_and_who_asks_hears_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        gate = Gate("engine")
        its = processes(monkeypatch, gate)
        running = asyncio.create_task(its.run())
        with pytest.raises(PotluckError, match="not installed"):
            await its.handle()
        assert Handle.made == []
        assert its.devices == ()

        gate.there.set()
        await its.handle()
        assert Handle.made == [Path("engine")]
        assert its.devices == (CPU,)
        await until(lambda: gate.worked == [Path("engine")])
        running.cancel()
        await asyncio.wait([running])

    run(main())


def test_an_engine_that_does_not_start_gives_way_to_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        gate = Gate("broken", "before")
        gate.there.set()
        its = processes(monkeypatch, gate)
        running = asyncio.create_task(its.run())
        await until(lambda: gate.worked == [Path("before")])
        await its.handle()
        assert Handle.made[-1] == Path("before")
        running.cancel()
        await asyncio.wait([running])

    run(main())


def test_an_own_torch_needs_no_folder() -> None:
    assert OwnEngine().is_there
    assert OwnEngine().folder() is None
    assert not OwnEngine().does_not_work()
