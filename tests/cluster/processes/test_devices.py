import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from fake_cluster import run, until

from potluck.cluster.processes import supervisor
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.processes.messages import StageSettings, Start
from potluck.cluster.processes.supervisor import Restarts
from potluck.errors import EngineError, PotluckError, UsageError
from potluck.wire.messages import DeviceId, DeviceInfo, NodeInfo

ME = NodeInfo(node_id="ab" * 32, name="Desk", version="0", os="Linux", arch="x")
GPU = DeviceInfo(kind="cuda", memory_total=24, memory_free=20)
SECOND = DeviceInfo(kind="cuda", index=1, memory_total=24, memory_free=24)
CPU = DeviceInfo(kind="cpu", memory_total=64, memory_free=50)
ALL = (GPU, SECOND, CPU)
RESTARTS = Restarts(pause_s=0.0)


class FakeHandle:
    """A stage process that computes nothing; the best device's sees all of them."""

    made: "list[FakeHandle]"
    broken: DeviceId | None  # whose process does not start
    crashes: bool  # the best device's process
    all_devices: tuple[DeviceInfo, ...]  # that the best device's process sees
    may_start: asyncio.Event

    def __init__(
        self,
        start: Start,
        *,
        log_path: Path,
        on_changed: Callable[[], None],
        on_exit: Callable[[PotluckError], None],
        environment: Mapping[str, str],
        **_: object,
    ) -> None:
        self.devices: tuple[DeviceInfo, ...] = ()
        self.begun, self.hidden = start, environment
        self.log_path = log_path
        self.on_changed = on_changed
        self.on_exit = on_exit
        self.told: list[StageSettings] = []
        self.may_settle = asyncio.Event()
        self.may_settle.set()
        self.is_idle = False
        self.is_stopped = False
        FakeHandle.made.append(self)

    async def start(self) -> None:
        await FakeHandle.may_start.wait()
        if FakeHandle.crashes and self.begun.device is None:
            raise EngineError("the driver crashed")
        if FakeHandle.broken is not None and self.begun.device == FakeHandle.broken:
            raise EngineError("no driver")
        own = next((d for d in ALL if d.id == self.begun.device), None)
        self.devices = FakeHandle.all_devices if own is None else (own,)

    async def stop(self) -> None:
        self.is_stopped = True

    def change(self, settings: StageSettings) -> None:
        self.told.append(settings)

    async def settled(self) -> None:
        await self.may_settle.wait()


class Desk:
    """The processes of a computer with two GPUs, whose processes are fake."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        broken: DeviceId | None = None,
        is_impatient: bool = False,
    ) -> None:
        FakeHandle.made, FakeHandle.broken = [], broken
        FakeHandle.crashes, FakeHandle.all_devices = False, ALL
        FakeHandle.may_start = asyncio.Event()
        FakeHandle.may_start.set()
        self.hides: Mapping[str, str] = {}
        patch.setattr(supervisor, "StageHandle", FakeHandle)
        self.died: list[DeviceId] = []
        self.used: set[DeviceId] = set()
        self.processes = StageProcesses(
            identity_folder=Path("identity"),
            me=lambda: ME,
            log_folder=Path("logs"),
            memory_limit=7,
            cpus=(4,),
            step_failed=lambda _: None,
            died=lambda device, _: self.died.append(device),
            changed=lambda: None,
            is_used=lambda device: device in self.used,
            environment=self.environment,
            restarts=RESTARTS,
            check_s=0.0 if is_impatient else 10.0,
            unused_s=0.0 if is_impatient else 120.0,
        )

    async def environment(self) -> Mapping[str, str]:
        return self.hides

    async def __aenter__(self) -> StageProcesses:
        self._running = asyncio.create_task(self.processes.run())
        return self.processes

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


def test_only_the_best_devices_process_runs_until_another_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            best = await processes.handle()
            assert await processes.handle(GPU.id) is best
            assert processes.devices == ALL
            assert len(FakeHandle.made) == 1

            other = await processes.handle(CPU.id)
            assert await processes.handle(CPU.id) is other
            assert processes.running() == (best, other)
        first, second = FakeHandle.made
        assert (first.begun.device, first.begun.me.name) == (None, "Desk")
        assert (second.begun.device, second.begun.me.name) == (CPU.id, "Desk/cpu")
        assert (second.begun.memory_limit, second.begun.cpus) == (7, (4,))
        assert first.log_path != second.log_path
        assert first.is_stopped
        assert second.is_stopped

    run(main())


def test_who_asks_for_a_device_before_anything_is_up_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            assert processes.devices == ()
            handle = await processes.handle(SECOND.id)
            assert handle.devices == (SECOND,)
            assert await processes.handle(GPU.id) is FakeHandle.made[0]

    run(main())


def test_a_look_waits_for_what_every_process_lends_by_the_last_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            await processes.look()
            assert processes.devices == ALL
            await processes.handle(CPU.id)
            first, second = FakeHandle.made
            first.may_settle.clear()
            second.may_settle.clear()
            looking = asyncio.create_task(processes.look())
            first.may_settle.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not looking.done()
            second.may_settle.set()
            await looking

    run(main())


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            with pytest.raises(UsageError, match="no device cuda:2"):
                await processes.handle(DeviceId(kind="cuda", index=2))

    run(main())


def test_what_a_device_lends_is_said_by_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            await processes.handle(SECOND.id)
            less = msgspec.structs.replace(SECOND, memory_free=3)
            FakeHandle.made[1].devices = (less,)
            assert processes.devices == (GPU, less, CPU)

    run(main())


def test_a_process_that_dies_is_named_and_the_others_live_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        async with desk as processes:
            best = await processes.handle()
            await processes.handle(CPU.id)
            FakeHandle.made[1].on_exit(EngineError("died"))
            assert desk.died == [CPU.id]
            assert processes.devices == ALL
            assert await processes.handle(CPU.id) is FakeHandle.made[2]

            FakeHandle.made[0].on_exit(EngineError("died"))
            assert desk.died == [CPU.id, GPU.id]
            assert processes.devices == ALL  # it is being started again
            assert await processes.handle() is not best

    run(main())


def test_a_device_whose_process_never_starts_is_no_device_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch, broken=SECOND.id) as processes:
            with pytest.raises(EngineError, match="no driver"):
                await processes.handle(SECOND.id)
            assert len(FakeHandle.made) == RESTARTS.most + 2
            assert processes.devices == (GPU, CPU)
            assert await processes.handle(CPU.id)

    run(main())


def test_when_the_best_device_works_no_longer_the_next_one_is_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            for _ in range(RESTARTS.most + 1):
                await processes.handle()
                FakeHandle.made[-1].on_exit(EngineError("driver"))
            await until(lambda: processes.devices == (SECOND, CPU))
            with pytest.raises(EngineError, match="driver"):
                await processes.handle(GPU.id)
            assert (await processes.handle()).devices == (SECOND,)

    run(main())


def test_a_process_that_nobody_uses_ends_and_starts_again_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Desk(monkeypatch, is_impatient=True) as mine:
            await mine.handle()
            await mine.handle(CPU.id)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not FakeHandle.made[1].is_stopped
            FakeHandle.made[1].is_idle = True
            await until(lambda: FakeHandle.made[1].is_stopped)

            assert not FakeHandle.made[0].is_stopped
            assert mine.devices == ALL
            assert await mine.handle(CPU.id) is FakeHandle.made[2]

    run(main())


def test_a_process_whose_stage_is_still_on_its_way_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its neighbour was told its port: another process would listen on another one."""

    async def main() -> None:
        desk = Desk(monkeypatch, is_impatient=True)
        async with desk as mine:
            desk.used.add(CPU.id)
            await mine.handle(CPU.id)
            FakeHandle.made[1].is_idle = True
            for _ in range(20):
                await asyncio.sleep(0)
            assert not FakeHandle.made[1].is_stopped
            desk.used.clear()
            await until(lambda: FakeHandle.made[1].is_stopped)

    run(main())


def test_what_changes_is_told_to_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Desk(monkeypatch) as processes:
            await processes.handle(CPU.id)
            processes.lend(99)
            processes.trust_changed()
            processes.compute_with(3)
            before, now = (StageSettings(memory_limit=99, threads=n) for n in (None, 3))
            assert [handle.told for handle in FakeHandle.made] == [[before, before, now]] * 2
            assert (await processes.handle(SECOND.id)).devices == (SECOND,)
            assert FakeHandle.made[2].begun.memory_limit == 99

    run(main())


def test_when_other_gpus_are_hidden_all_processes_end_before_the_best_ones_sees_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        async with desk as processes:
            before = await processes.handle()
            await processes.handle(CPU.id)
            desk.hides = {"CUDA_VISIBLE_DEVICES": "-1"}
            FakeHandle.all_devices = (CPU,)
            processes.renew()
            assert processes.devices == ()  # what they were before is not told any more
            assert processes.running() == ()
            after = await processes.handle()

            assert after is not before
            assert [one.is_stopped for one in FakeHandle.made] == [True, True, False]
            assert processes.devices == (CPU,)
            assert await processes.handle(CPU.id) is after
            assert FakeHandle.made[1].hidden == {}
            assert FakeHandle.made[2].hidden == desk.hides
            assert desk.died == []
            with pytest.raises(UsageError, match="no device cuda:0"):
                await processes.handle(GPU.id)

    run(main())


def test_a_gpu_whose_process_never_starts_is_hidden_and_the_next_best_device_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        FakeHandle.crashes = True
        async with desk as processes:
            with pytest.raises(EngineError):
                await processes.handle()
            FakeHandle.crashes = False
            FakeHandle.all_devices = (CPU,)
            processes.renew()
            assert (await processes.handle()).devices == (CPU,)

    run(main())


def test_who_waits_for_a_process_that_is_ended_hears_so_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        FakeHandle.may_start = asyncio.Event()
        async with desk as processes:
            waiting = asyncio.create_task(processes.handle())
            await until(lambda: FakeHandle.made)
            processes.renew()
            with pytest.raises(EngineError, match="not running"):
                await waiting
            FakeHandle.may_start.set()
            assert await processes.handle() is FakeHandle.made[1]

    run(main())
