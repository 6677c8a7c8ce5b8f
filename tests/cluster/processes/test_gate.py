"""Stage processes wait for an engine, get its folder, and start with the one before if it does not work."""

import asyncio
from pathlib import Path

import pytest
from fake_cluster import run, until
from test_devices import ME, RESTARTS, FakeHandle

from potluck.cluster.processes import supervisor
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.processes.gate import OwnEngine
from potluck.errors import EngineError, PotluckError


class Handle(FakeHandle):
    """A stage process that starts with one engine alone."""

    def __init__(self, start, *, engine: Path | None = None, **others) -> None:
        super().__init__(start, **others)
        self.engine = engine

    async def start(self) -> None:
        if self.engine == Path("broken"):
            raise EngineError("it does not import torch")
        await super().start()


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
    FakeHandle.made, FakeHandle.broken = [], None
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
        restarts=RESTARTS,
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
        assert FakeHandle.made == []
        assert its.devices == ()

        gate.there.set()
        handle = await its.handle()
        assert handle.engine == Path("engine")
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
        assert (await its.handle()).engine == Path("before")
        running.cancel()
        await asyncio.wait([running])

    run(main())


def test_an_own_torch_needs_no_folder() -> None:
    assert OwnEngine().is_there
    assert OwnEngine().folder() is None
    assert not OwnEngine().does_not_work()
