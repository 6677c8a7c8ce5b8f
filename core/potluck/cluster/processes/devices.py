"""The stage processes of this computer: one for each device that is used.

The process of the best device runs as long as the node does, and knows which other devices there
are. Each of the others gets a process when it is asked for. A process that is not used for a while
is ended, so that it takes no memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from potluck.cluster.device_names import device_label, place_name
from potluck.cluster.processes.gate import EngineGate, OwnEngine
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import Start
from potluck.cluster.processes.supervisor import Restarts, Supervisor, no_environment
from potluck.errors import EngineError, PotluckError, UsageError
from potluck.tasks import end
from potluck.wire.messages import DeviceId, DeviceInfo, NodeInfo, StepFailed

logger = logging.getLogger(__name__)

_UNUSED_S = 120.0  # a second plan for the same model needs no new start
_CHECK_S = 10.0


@dataclass(slots=True, eq=False)
class _Other:
    """The process of a device other than the best one."""

    process: Supervisor
    running: asyncio.Task[None]
    used: float  # time of the last use, on the loop's clock


class StageProcesses:
    """Owns the stage processes of this computer's devices.

    Args:
        identity_folder: of this node.
        me: describes this node to peers.
        log_folder: where each process has its log.
        memory_limit: most bytes that are lent of the RAM, and of each GPU.
        cpus: if the CPU is offered as several devices, the threads of each; empty: it is one
            device.
        threads: threads of the CPU if it is one device; None: one for each core.
        step_failed: called with a step that a stage could not do.
        died: called with the device whose process is gone, together with all its layers.
        changed: called when the devices or their memory have changed.
        sessions: folder where conversations' caches are kept; None: they are not.
        sessions_limit: bytes that they may take.
        kernels: the owner's folder where compiled kernels are kept; None: they are not.
        engine: what they wait for, and get torch from; None: it is in this Python.
        is_used: whether a device has a stage in a plan, even if nothing is loaded yet.
        environment: returns variables of each process, which hide GPUs from it.
        check_s: seconds between two searches for unused processes.
        unused_s: seconds after which an unused process is ended.
        restarts: when a process that died is started again.
    """

    def __init__(
        self,
        *,
        identity_folder: Path,
        me: Callable[[], NodeInfo],
        log_folder: Path,
        memory_limit: int | None,
        step_failed: Callable[[StepFailed], None],
        died: Callable[[DeviceId, PotluckError], None],
        changed: Callable[[], None],
        is_used: Callable[[DeviceId], bool] = lambda device: False,
        sessions: Path | None = None,
        sessions_limit: int = 0,
        kernels: Path | None = None,
        cpus: tuple[int, ...] = (),
        threads: int | None = None,
        engine: EngineGate | None = None,
        environment: Callable[[], Awaitable[Mapping[str, str]]] = no_environment,
        check_s: float = _CHECK_S,
        unused_s: float = _UNUSED_S,
        restarts: Restarts | None = None,
    ) -> None:
        self._check_s, self._unused_s, self._restarts = check_s, unused_s, restarts
        self._engine = engine if engine is not None else OwnEngine()
        self._environment = environment
        self._identity_folder = identity_folder
        self._me = me
        self._log_folder = log_folder
        self._memory_limit = memory_limit
        self._sessions, self._sessions_limit = sessions, sessions_limit
        self._kernels = kernels
        self._cpus = cpus
        self._threads = threads
        self._step_failed = step_failed
        self._died = died
        self._changed = changed
        self._is_used = is_used
        self._known: tuple[DeviceInfo, ...] = ()  # as the best device's process reported them last
        self._best = self._supervise(None)
        self._running_best: asyncio.Task[None] | None = None
        self._others: dict[DeviceId, _Other] = {}

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices that can be used, the best one first; empty until the first process is up."""
        return tuple(d for known in self._known if (d := self._now(known)) is not None)

    def _now(self, known: DeviceInfo) -> DeviceInfo | None:
        """A device as its own process sees it, if it has one. None: its process was given up."""
        process = self._process_of(known.id)
        if process is None or not process.devices:
            return None if process is not None and process.is_given_up else known
        return process.devices[0]

    def _process_of(self, device: DeviceId) -> Supervisor | None:
        if device == self._known[0].id:
            return self._best
        other = self._others.get(device)
        return other.process if other is not None else None

    def running(self) -> tuple[StageHandle, ...]:
        """The processes that are up."""
        processes = (self._best, *(other.process for other in self._others.values()))
        return tuple(one.running for one in processes if one.running is not None)

    async def look(self) -> None:
        """Wait until the devices are known, and what they lend by the last settings.

        Raises:
            EngineError: no process starts on this computer.
        """
        if not self.devices:
            await self.handle()
        await self.settled()

    async def settled(self) -> None:
        """Wait until all processes have taken over the last settings, and said what they lend by them."""
        await asyncio.gather(*(one.settled() for one in self.running()))

    async def handle(self, device: DeviceId | None = None) -> StageHandle:
        """The process of a device (None: the best one that works). It is started if needed.

        Raises:
            EngineError: the process does not start on this computer.
            UsageError: there is no such device.
        """
        if not self._engine.is_there:
            raise self._engine.lacking()
        if device is not None and not self._known:
            await self._best.handle()  # this process tells which devices there are
        if device is None and self._best.is_given_up and self.devices:
            device = self.devices[0].id
        if device is None or device == self._known[0].id:
            return await self._best.handle()
        if device not in {known.id for known in self._known}:
            raise UsageError(f"This computer has no device {device_label(device)}.")
        return await self._other(device).handle()

    def _other(self, device: DeviceId) -> Supervisor:
        now = asyncio.get_running_loop().time()
        other = self._others.get(device)
        if other is None:
            process = self._supervise(device)
            running = asyncio.create_task(process.run(), name=f"stage {device_label(device)}")
            other = self._others[device] = _Other(process, running, now)
        other.used = now
        return other.process

    def lend(self, memory_limit: int | None) -> None:
        """Lend at most so many bytes of the RAM, and of each GPU, from now on; None: no limit."""
        self._memory_limit = memory_limit
        self._settings_changed()

    def compute_with(self, threads: int | None) -> None:
        """Use so many threads for what is loaded next; None: one for each core."""
        self._threads = threads
        self._settings_changed()

    def trust_changed(self) -> None:
        """Read the identity's folder again. The identity calls this when its folder has changed."""
        self._settings_changed()

    def _settings_changed(self) -> None:
        for process in (self._best, *(other.process for other in self._others.values())):
            process.settings_changed()

    async def run(self) -> None:
        """Keep the processes running, until cancelled."""
        self._start_best()
        try:
            while True:
                await asyncio.sleep(self._check_s)
                self._end_unused()
        finally:
            await asyncio.wait(self._end_all())

    def renew(self) -> None:
        """End all processes, and start the best device's anew: other GPUs are hidden from it now.

        Which devices there are is not known until it is up.
        """
        if self._running_best is None:
            return  # it starts with what is hidden by then
        before = self._end_all()
        self._known, self._best = (), self._supervise(None)
        self._start_best(after=before)

    def _end_all(self) -> Collection[asyncio.Task[None]]:
        """Have all processes end. The tasks do so when they have."""
        running = [other.running for other in self._others.values()]
        if self._running_best is not None:
            running.append(self._running_best)
        self._running_best = None
        self._others.clear()
        for task in running:
            task.cancel()
        return running

    def _start_best(self, after: Collection[asyncio.Task[None]] = ()) -> None:
        self._running_best = asyncio.create_task(
            self._run_best(after), name="stage of the best device"
        )

    async def _run_best(self, after: Collection[asyncio.Task[None]]) -> None:
        """Run the best device's process once there is an engine; if it does not start, with the engine before.

        `after`: these have ended first.
        """
        if after:
            await asyncio.wait(after)
        is_other = True
        while is_other:
            await self._engine.wait()
            seeing = asyncio.create_task(self._see_it_work(), name="first start of the engine")
            try:
                await self._best.run()  # until it is given up
            finally:
                await end(seeing)
            if is_other := await asyncio.to_thread(self._engine.does_not_work):
                self._best = self._supervise(None)

    async def _see_it_work(self) -> None:
        with suppress(EngineError):
            await self._best.handle()
            await asyncio.to_thread(self._engine.works)

    def _end_unused(self) -> None:
        """End the processes that hold nothing and have no request. They start again on demand."""
        now = asyncio.get_running_loop().time()
        for device, other in list(self._others.items()):
            if self._is_used(device) or not other.process.is_idle:
                other.used = now
            elif now - other.used > self._unused_s:
                logger.info("ending an unused stage process device=%s", device_label(device))
                del self._others[device]
                other.running.cancel()

    # --- a process

    def _supervise(self, device: DeviceId | None) -> Supervisor:
        log = "engine.log"
        if device is not None:
            log = f"engine-{device.kind}-{device.index}.log"
        return Supervisor(
            start=partial(self._start, device),
            log_path=self._log_folder / log,
            step_failed=self._step_failed,
            died=partial(self._one_died, device),
            changed=self._one_changed,
            engine=self._engine.folder,
            environment=self._environment,
            restarts=self._restarts,
        )

    def _start(self, device: DeviceId | None) -> Start:
        return Start(
            identity_folder=str(self._identity_folder),
            me=self._name(device),
            memory_limit=self._memory_limit,
            threads=self._threads,
            device=device,
            cpus=self._cpus,
            sessions_folder=None if self._sessions is None else str(self._sessions),
            sessions_limit=self._sessions_limit,
            kernels_folder=None if self._kernels is None else str(self._kernels),
        )

    def _name(self, device: DeviceId | None) -> NodeInfo:
        """How a process describes itself: its name has the device if there are several."""
        me = self._me()
        if device is None:
            return me  # the process of the best device learns of the devices only at its start
        return msgspec.structs.replace(me, name=place_name(me.name, device, self._known))

    def _one_changed(self) -> None:
        self._known = self._best.devices or self._known
        self._changed()

    def _one_died(self, device: DeviceId | None, error: PotluckError) -> None:
        if self._known:  # else the process was never up, so it held nothing
            self._died(device or self._known[0].id, error)
