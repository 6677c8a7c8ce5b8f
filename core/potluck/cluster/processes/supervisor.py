"""Keep one stage process running: start it, and start it again when it dies, up to a limit."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import StageSettings, Start
from potluck.errors import EngineError, PotluckError
from potluck.wire.messages import DeviceInfo, StepFailed

logger = logging.getLogger(__name__)

PATIENCE_S = 100.0  # a little longer than one start may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """When a process that died is started again."""

    most: int = 5  # times within `span_s`; a process that dies more often is broken, not unlucky
    span_s: float = 120.0
    pause_s: float = 0.5  # before each start but that after the first death


async def no_environment() -> Mapping[str, str]:
    """Return the environment of a process that has no variables of its own."""
    return {}


class Supervisor:
    """Owns the stage process of one device of this computer.

    Args:
        start: returns the first message to the process, with the settings of now.
        died: called when the process is gone, together with all its layers.
        changed: called when the devices, their memory or what is held have changed.
        engine: returns the folder with torch, where it was installed apart from this Python.
        environment: returns variables of the process beside the usual ones.
        restarts: when a process that died is started again.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Start],
        log_path: Path,
        step_failed: Callable[[StepFailed], None],
        died: Callable[[PotluckError], None],
        changed: Callable[[], None],
        engine: Callable[[], Path | None] = lambda: None,
        environment: Callable[[], Awaitable[Mapping[str, str]]] = no_environment,
        restarts: Restarts | None = None,
    ) -> None:
        self._engine, self._environment = engine, environment
        self._start = start
        self._log_path = log_path
        self._step_failed = step_failed
        self._died = died
        self._changed = changed
        self._restarts = restarts or Restarts()
        self.is_given_up = False
        self.running: StageHandle | None = None  # the process, if it is up
        self._problem: PotluckError | None = None
        self._up = asyncio.Event()  # set while there is a handle, or once the process was given up
        self._wake = asyncio.Event()  # set when the process died
        self._is_behind = False  # a setting changed while no process was up

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices that the running process reports, its own first; empty while it starts."""
        return self.running.devices if self.running is not None else ()

    @property
    def is_idle(self) -> bool:
        """Whether the process is up, and nothing would be lost if it ended."""
        return self.running is not None and self.running.is_idle

    async def handle(self) -> StageHandle:
        """The running stage process; waits while it starts.

        Raises:
            EngineError: the process does not start on this computer.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._up.wait()
        if self.running is None:
            raise self._problem or EngineError(
                "The compute process of this computer is not running."
            )
        return self.running

    def settings_changed(self) -> None:
        """Send the settings to the process. One that is starting gets them when it is up."""
        self._is_behind = self.running is None
        if self.running is not None:
            start = self._start()
            settings = StageSettings(memory_limit=start.memory_limit, threads=start.threads)
            with suppress(EngineError):  # it has just died; the next one starts with these settings
                self.running.change(settings)

    async def run(self) -> None:
        """Start the process, and start it again when it dies, until cancelled or given up."""
        try:
            await self._run()
        finally:
            self._up.set()  # whoever waits for the process does so in vain

    async def _run(self) -> None:
        restarts = self._restarts
        deaths: deque[float] = deque(maxlen=restarts.most)
        loop = asyncio.get_running_loop()
        while True:
            self._is_behind = False
            handle = self._new_handle(await self._environment())
            try:
                await handle.start()
                self.running = handle
                if self._is_behind:
                    self.settings_changed()
                self._up.set()
                self._changed()
                await self._wake.wait()
            except PotluckError as error:
                logger.exception("the stage process does not start")
                self._problem = error
            finally:
                self.running = None
                await handle.stop()
            self._wake.clear()
            if len(deaths) == restarts.most and loop.time() - deaths[0] < restarts.span_s:
                logger.error(
                    "the stage process died %d times in a row, and stays down", restarts.most
                )
                self.is_given_up = True
                return
            self._up.clear()
            is_first = not deaths or loop.time() - deaths[-1] > restarts.span_s
            deaths.append(loop.time())
            if not is_first:  # an answer may be waiting for this process
                await asyncio.sleep(restarts.pause_s)

    def _new_handle(self, environment: Mapping[str, str]) -> StageHandle:
        return StageHandle(
            self._start(),
            log_path=self._log_path,
            on_step_failed=self._step_failed,
            on_changed=self._changed,
            on_exit=self._on_exit,
            engine=self._engine(),
            environment=environment,
        )

    def _on_exit(self, error: PotluckError) -> None:
        self._problem = error
        self.running = None
        self._up.clear()
        self._wake.set()
        self._died(error)
        self._changed()
