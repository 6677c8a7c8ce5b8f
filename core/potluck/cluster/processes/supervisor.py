"""Keep one stage process running: start it, and start it again when it dies, up to a limit."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import Start
from potluck.errors import EngineError, PotluckError
from potluck.wire.messages import DeviceId, DeviceInfo, NodeInfo, StepFailed

logger = logging.getLogger(__name__)

PATIENCE_S = 100.0  # a little longer than one start may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """When a process that died is started again."""

    most: int = 5  # times within `span_s`; a process that dies more often is broken, not unlucky
    span_s: float = 120.0
    pause_s: float = 0.5  # before each start


class Supervisor:
    """Owns the stage process of one device of this computer.

    Args:
        device: the device of the process; None: the best one.
        cpus: if the CPU is offered as several devices, the threads of each; empty: it is one
            device.
        died: called when the process is gone, together with all its layers.
        changed: called when the devices or their memory have changed.
        restarts: when a process that died is started again.
    """

    def __init__(
        self,
        *,
        identity_folder: Path,
        me: Callable[[], NodeInfo],
        log_path: Path,
        memory_limit: int | None,
        threads: int | None = None,
        step_failed: Callable[[StepFailed], None],
        died: Callable[[PotluckError], None],
        changed: Callable[[], None],
        device: DeviceId | None = None,
        cpus: tuple[int, ...] = (),
        restarts: Restarts | None = None,
    ) -> None:
        self._identity_folder = identity_folder
        self._me = me
        self._log_path = log_path
        self._memory_limit = memory_limit
        self._threads = threads
        self._step_failed = step_failed
        self._died = died
        self._changed = changed
        self._device = device
        self._cpus = cpus
        self._restarts = restarts or Restarts()
        self.is_given_up = False
        self._handle: StageHandle | None = None
        self._problem: PotluckError | None = None
        self._up = asyncio.Event()  # set while there is a handle, or once the process was given up
        self._wake = asyncio.Event()  # set when the process died
        self._is_behind = False  # a setting changed while no process was up

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices that the running process reports, its own first; empty while it starts."""
        return self._handle.devices if self._handle is not None else ()

    @property
    def running(self) -> StageHandle | None:
        """The process, if it is up."""
        return self._handle

    @property
    def is_idle(self) -> bool:
        """Whether the process is up, and nothing would be lost if it ended."""
        return self._handle is not None and self._handle.is_idle

    async def handle(self) -> StageHandle:
        """The running stage process; waits while it starts.

        Raises:
            EngineError: the process does not start on this computer.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._up.wait()
        if self._handle is None:
            raise self._problem or EngineError(
                "The compute process of this computer is not running."
            )
        return self._handle

    def lend(self, memory_limit: int | None) -> None:
        """Lend at most so many bytes from now on; None: no limit."""
        self._memory_limit = memory_limit
        self._tell()

    def compute_with(self, threads: int | None) -> None:
        """Use so many threads for what is loaded next; None: one for each core."""
        self._threads = threads
        self._tell()

    def trust_changed(self) -> None:
        """Read the identity's folder again. The identity calls this when its folder has changed."""
        self._tell()

    def _tell(self) -> None:
        """Send all settings to the process. One that is starting gets them when it is up."""
        self._is_behind = self._handle is None
        if self._handle is not None:
            with suppress(EngineError):  # it has just died; the next one starts with these settings
                self._handle.lend(self._memory_limit)
                self._handle.compute_with(self._threads)
                self._handle.trust_changed()

    async def run(self) -> None:
        """Start the process, and start it again when it dies, until cancelled or given up."""
        restarts = self._restarts
        deaths: deque[float] = deque(maxlen=restarts.most)
        loop = asyncio.get_running_loop()
        while True:
            self._is_behind = False
            handle = self._new_handle()
            try:
                await handle.start()
                self._handle = handle
                if self._is_behind:
                    self._tell()
                self._up.set()
                self._changed()
                await self._wake.wait()
            except PotluckError as error:
                logger.exception("the stage process does not start")
                self._problem = error
            finally:
                self._handle = None
                await handle.stop()
            self._wake.clear()
            if len(deaths) == restarts.most and loop.time() - deaths[0] < restarts.span_s:
                logger.error(
                    "the stage process died %d times in a row, and stays down", restarts.most
                )
                self.is_given_up = True
                self._up.set()
                return
            self._up.clear()
            deaths.append(loop.time())
            await asyncio.sleep(restarts.pause_s)

    def _new_handle(self) -> StageHandle:
        return StageHandle(
            Start(
                identity_folder=str(self._identity_folder),
                me=self._me(),
                memory_limit=self._memory_limit,
                device=self._device,
                cpus=self._cpus,
                threads=self._threads,
            ),
            log_path=self._log_path,
            on_step_failed=self._step_failed,
            on_devices=self._changed,
            on_exit=self._on_exit,
        )

    def _on_exit(self, error: PotluckError) -> None:
        self._problem = error
        self._handle = None
        self._up.clear()
        self._wake.set()
        self._died(error)
        self._changed()
