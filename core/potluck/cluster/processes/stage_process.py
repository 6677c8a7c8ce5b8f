"""One stage process and the pipe to it: it is started, watched and stopped, and its messages are read.

If the process dies, every open request fails with an error that names its log. That log is kept beside the next
process's log.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from potluck import errors
from potluck.cluster.device_names import place_name
from potluck.cluster.processes.messages import (
    MAX_FRAME,
    Answer,
    FromStage,
    Health,
    HealthCheck,
    Held,
    Holds,
    LoadProgress,
    Memory,
    Ready,
    Request,
    Start,
    ToStage,
    decode_from_stage,
    encode,
)
from potluck.cluster.processes.start import keep_log, start_process
from potluck.cluster.processes.watchdog import Watchdog, WatchTimes
from potluck.reasons import reason
from potluck.wire.messages import DeviceInfo, Error, StepFailed

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 4
# torch's threads sleep between operators instead of spinning: the generated kernels have threads of
# their own, which would wait for the same cores. glibc allocates in one heap for all threads: only
# one thread computes, and glibc never returns the free end of another thread's heap to the system.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_ARENA_MAX": "1"}

_Answer = TypeVar("_Answer", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleTimes:
    """How long a stage process is waited for, in seconds."""

    start_s: float = 90.0  # importing torch on a cold disk took 12 s on an old laptop
    stop_s: float = 3.0
    settle_s: float = (
        5.0  # for what is lent after new settings; without it, what was lent before counts
    )
    profile_s: float = 60.0
    load_silence_s: float = 60.0  # a load that reports no progress for so long is stuck
    unload_s: float = 20.0
    take_sessions_s: float = 6.0  # more than the process gives itself to reach others
    measure_s: float = 60.0  # six passes over the weights, the first time twelve
    watch: WatchTimes = field(default_factory=WatchTimes)
    sums_s: float = 8.0  # more than the process gives itself
    quantise_s: float = 600.0  # one matrix: a gigabyte on a slow disk, after others that wait


class StageProcess:
    """The process behind a `StageHandle`, which says what the arguments are."""

    def __init__(
        self,
        start: Start,
        *,
        log_path: Path,
        on_step_failed: Callable[[StepFailed], None],
        on_changed: Callable[[], None],
        on_exit: Callable[[errors.PotluckError], None],
        engine: Path | None = None,
        environment: Mapping[str, str] | None = None,
        times: HandleTimes | None = None,
    ) -> None:
        self._engine = engine
        self._environment = _ENVIRONMENT | dict(environment or {})
        self._times = times if times is not None else HandleTimes()
        self.devices: tuple[DeviceInfo, ...] = ()
        self.activation_port = 0
        self._start = start
        self._log_path = log_path
        self._on_step_failed = on_step_failed
        self._on_changed = on_changed
        self._on_exit = on_exit
        self._requests = itertools.count(1)
        self._waiting: dict[int | None, asyncio.Future[FromStage]] = {}
        self._on_progress: Callable[[LoadProgress], None] = lambda _: None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(self._ping, self._hung, self._times.watch)
        self._watching: asyncio.Task[None] | None = None
        self._is_ready = False
        self._is_hung = False
        self._is_stopping = False
        self._steps, self._is_computing = 0, False  # as it said last
        self.held: Held | None = None  # what the process holds; None: nothing
        self._settings = 0  # the number of those that were sent last
        self._settled = asyncio.Event()  # set unless the process has still to answer these
        self._settled.set()

    @property
    def is_idle(self) -> bool:
        """Whether the process has no stage in force and no open request."""
        return not self._is_asked and (self.held is None or self.held.stage.epoch is None)

    @property
    def is_busy(self) -> bool:
        """Whether the process computes, loads or measures at this moment."""
        return self._is_asked or self._is_computing

    @property
    def _is_asked(self) -> bool:
        """Whether there is an open request."""
        return any(not future.done() for future in self._waiting.values())

    async def start(self) -> None:
        """Start the process and wait until its devices are known.

        Raises:
            EngineError: the process did not start; the message names its log.
        """
        try:
            keep_log(self._log_path)
            self._process = await start_process(
                "potluck.cluster.stage", self._log_path, self._environment, engine=self._engine
            )
        except OSError as error:
            raise errors.EngineError(
                f"The compute process cannot be started: {reason(error)}. Restart Potluck; its log would be"
                f" {self._log_path}."
            ) from error
        self._send(self._start)
        ready: asyncio.Future[FromStage] = asyncio.get_running_loop().create_future()
        self._waiting[0] = ready
        self._reader = asyncio.create_task(self._read(), name="stage process")
        try:
            async with asyncio.timeout(self._times.start_s):
                await ready
        except TimeoutError:
            await self.stop()
            raise errors.EngineError(
                f"The compute process did not start within {self._times.start_s:.0f} seconds."
                f" Its log is {keep_log(self._log_path)}."
            ) from None
        self._watching = asyncio.create_task(self._watchdog.run(), name="watchdog")

    def _ping(self) -> None:
        with suppress(errors.EngineError):  # it has just ended, and the reader notices that
            self._send(HealthCheck())

    def _hung(self) -> None:
        logger.error("the stage process hangs and is killed log=%s", self._log_path)
        self._is_hung = True
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Ask the process to end; kill it if it does not."""
        self._is_stopping = True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # the process ends when its node is gone
        try:
            async with asyncio.timeout(self._times.stop_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    async def _ask(
        self, message: Request, answer: type[_Answer], timeout_s: float | None
    ) -> _Answer:
        future: asyncio.Future[FromStage] = asyncio.get_running_loop().create_future()
        request = next(self._requests)
        self._waiting[request] = future
        try:
            self._send(msgspec.structs.replace(message, id=request))
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            raise errors.EngineError(
                "The compute process on this computer does not answer. Restart Potluck here;"
                f" its log is {self._log_path}."
            ) from None
        finally:
            self._waiting.pop(request, None)
        if not isinstance(result, answer):
            raise errors.EngineError(f"The compute process answered {type(result).__name__}.")
        return result

    def _send(self, message: ToStage) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise errors.EngineError("The compute process on this computer is not running.")
        process.stdin.write(encode(message))

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        stream = self._process.stdout
        try:
            while True:
                length = int.from_bytes(await stream.readexactly(_LENGTH_BYTES), "big")
                if length > MAX_FRAME:
                    raise errors.EngineError(
                        "The compute process wrote something that is no message."
                    )
                self._handle(decode_from_stage(await stream.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the process is gone
        except Exception:  # the boundary to the process: the supervisor starts another one
            logger.exception("the stage process said what could not be handled")
            self._process.kill()
        self._ended(await self._process.wait())

    def _handle(self, message: FromStage) -> None:
        match message:
            case Ready():
                self._is_ready = True
                self.activation_port = message.activation_port
                self.devices = message.devices
                self._answer(0, message)
            case Health():
                self._watchdog.answered(is_stuck=message.is_stuck)
                self._is_computing, self._steps = message.steps != self._steps, message.steps
            case Memory():
                self.devices = message.devices
                if message.re == self._settings:
                    self._settled.set()
                self._on_changed()
            case LoadProgress():
                self._on_progress(message)
            case StepFailed():
                self._on_step_failed(message)
            case Error():
                error = errors.rebuild(
                    message.kind, message.message, message.data, default=errors.EngineError
                )
                future = self._waiting.get(message.re)
                if future is not None and not future.done():
                    future.set_exception(error)
            case Holds():
                self.held = message.held
                self._on_changed()
            case _:
                self._answer(message.re, message)

    def _answer(self, request: int | None, message: FromStage) -> None:
        future = self._waiting.get(request)
        if future is not None and not future.done():
            future.set_result(message)

    def _ended(self, status: int) -> None:
        self.held = None
        self._settled.set()
        if self._watching is not None:
            self._watching.cancel()
        name = self._start.me.name
        if self.devices:
            name = place_name(name, self.devices[0], self.devices)
        log = self._log_path if self._is_stopping else keep_log(self._log_path)
        what = "did not answer and was ended" if self._is_hung else f"stopped (status {status})"
        error = errors.EngineError(
            f"The compute process of {name} {what}. It is started again; its log is {log}.",
            is_hung=self._is_hung,
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        if self._is_ready and not self._is_stopping:
            logger.error("stage process ended status=%d log=%s", status, log)
            self._on_exit(error)
