import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cluster import run, until

from potluck.cluster.processes import supervisor
from potluck.cluster.processes.messages import StageSettings, Start
from potluck.cluster.processes.supervisor import Restarts, Supervisor
from potluck.errors import EngineError, PotluckError
from potluck.wire.messages import DeviceInfo, NodeInfo

ME = NodeInfo(node_id="ab" * 32, name="Desk", version="0", os="Linux", arch="x")
DEVICE = DeviceInfo(kind="cpu", memory_total=10, memory_free=5)
RESTARTS = Restarts(pause_s=0.0)


class FakeHandle:
    """A stage process that starts when its gate is open, or does not."""

    made: "list[FakeHandle]"
    gate: asyncio.Event
    start_errors: list[Exception]

    def __init__(self, start: Start, *, on_exit: Callable[[PotluckError], None], **_: object):
        self.devices: tuple[DeviceInfo, ...] = ()
        self.start_message = start
        self.on_exit = on_exit
        self.told: list[StageSettings] = []
        self.is_stopped = False
        self.is_dead = False
        FakeHandle.made.append(self)

    async def start(self) -> None:
        await FakeHandle.gate.wait()
        if FakeHandle.start_errors:
            raise FakeHandle.start_errors.pop(0)
        self.devices = (DEVICE,)

    async def stop(self) -> None:
        self.is_stopped = True

    def change(self, settings: StageSettings) -> None:
        if self.is_dead:
            raise EngineError("not running")
        self.told.append(settings)

    def die(self) -> None:
        self.is_dead = True
        self.on_exit(EngineError("died"))


class Desk:
    """A supervisor whose processes are fake."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        FakeHandle.made, FakeHandle.start_errors = [], []
        FakeHandle.gate = asyncio.Event()
        FakeHandle.gate.set()
        patch.setattr(supervisor, "StageHandle", FakeHandle)
        self.died: list[PotluckError] = []
        self.memory_limit = 7
        self.engine = Supervisor(
            start=lambda: Start(
                identity_folder="identity", me=ME, memory_limit=self.memory_limit, threads=3
            ),
            log_path=Path("log"),
            step_failed=lambda _: None,
            died=self.died.append,
            changed=lambda: None,
            restarts=RESTARTS,
        )

    async def __aenter__(self) -> "Desk":
        self._running = asyncio.create_task(self.engine.run())
        return self

    def lend(self, memory_limit: int) -> None:
        self.memory_limit = memory_limit
        self.engine.settings_changed()

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


def test_who_asks_early_waits_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            FakeHandle.gate.clear()
            asking = asyncio.create_task(desk.engine.handle())
            await until(lambda: FakeHandle.made)
            assert desk.engine.devices == ()
            FakeHandle.gate.set()

            assert await asking is FakeHandle.made[0]
            assert desk.engine.devices == (DEVICE,)
            assert FakeHandle.made[0].start_message.memory_limit == 7
        assert FakeHandle.made[0].is_stopped

    run(main())


def test_one_that_died_is_started_again_and_who_needs_to_know_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            first = await desk.engine.handle()
            FakeHandle.made[0].die()
            assert desk.engine.devices == ()
            second = await desk.engine.handle()

            assert second is not first
            assert [str(error) for error in desk.died] == ["died"]
            assert FakeHandle.made[0].is_stopped

    run(main())


def test_one_that_does_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        FakeHandle.start_errors = [EngineError("no memory")]
        async with desk:
            assert await desk.engine.handle() is FakeHandle.made[1]
            assert desk.died == []  # it held nothing yet

    run(main())


def test_one_that_never_starts_is_an_error_and_not_a_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        FakeHandle.start_errors = [EngineError("no torch")] * (RESTARTS.most + 1)
        async with desk:
            with pytest.raises(EngineError, match="no torch"):
                await desk.engine.handle()
            assert len(FakeHandle.made) == RESTARTS.most + 1

    run(main())


def test_one_that_dies_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            for _ in range(RESTARTS.most + 1):
                await desk.engine.handle()
                FakeHandle.made[-1].die()
            with pytest.raises(EngineError, match="died"):
                await desk.engine.handle()

    run(main())


def test_what_changes_while_it_runs_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            await desk.engine.handle()
            desk.lend(99)
            assert FakeHandle.made[0].told == [StageSettings(memory_limit=99, threads=3)]

    run(main())


def test_what_changes_while_it_starts_is_told_when_it_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            FakeHandle.gate.clear()
            await until(lambda: FakeHandle.made)
            desk.lend(98)
            desk.lend(99)
            FakeHandle.gate.set()
            await desk.engine.handle()

            assert FakeHandle.made[0].told == [StageSettings(memory_limit=99, threads=3)]

    run(main())


def test_what_changes_while_it_dies_is_known_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as desk:
            await desk.engine.handle()
            FakeHandle.made[0].is_dead = True  # and nobody has noticed yet
            desk.lend(99)
            FakeHandle.made[0].die()
            await desk.engine.handle()

            assert FakeHandle.made[1].start_message.memory_limit == 99

    run(main())
