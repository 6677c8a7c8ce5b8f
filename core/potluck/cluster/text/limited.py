"""The node's side of a process with limits of memory and time, in which programs of strangers run."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import psutil

from potluck import errors
from potluck.cluster.processes.messages import MAX_FRAME, encode
from potluck.cluster.processes.start import start_process
from potluck.cluster.text.messages import Failed
from potluck.errors import EngineError, NotFoundError, PotluckError, format_bytes
from potluck.reasons import reason

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 4
_LOOK_S = 0.1  # between two looks at the memory of the process

_Answer = TypeVar("_Answer")


class LimitedProcess(Generic[_Answer]):
    """A process that answers one request after the other. It is ended when one exceeds its limits.

    Its callers take turns.
    """

    def __init__(
        self,
        module: str,
        log_path: Path,
        *,
        memory: int,
        environment: Mapping[str, str],
        decode: Callable[[bytes], _Answer | Failed],
        exceeded: Callable[[str], PotluckError],
    ) -> None:
        """Nothing is started yet.

        Args:
            module: the process's program.
            log_path: the file that takes what the process has to say.
            memory: the most bytes that it may take.
            environment: variables of it.
            decode: decodes an answer.
            exceeded: the error of a request, from words that say what the process did.
        """
        self._module, self._log_path, self._memory = module, log_path, memory
        self._environment, self._decode, self._exceeded = environment, decode, exceeded
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process.

        Raises:
            NotFoundError: it was closed.
            EngineError: it cannot be started.
        """
        if self._is_closed:
            raise _unloaded()
        try:
            self._process = await start_process(self._module, self._log_path, self._environment)
        except OSError as error:
            raise EngineError(
                f"The process for the model's words cannot be started: {reason(error)}. Restart Potluck."
            ) from error

    async def close(self) -> None:
        """End the process, and the request under way with an error. No other one is started."""
        self._is_closed = True
        await self.stop()

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def ask(self, request: msgspec.Struct, seconds: float) -> _Answer:
        """The answer to a request. Without one, the process is ended.

        Raises:
            PotluckError: the error that the process answered with; that of `exceeded`, if it did not answer
                in time, took too much memory, or crashed.
        """
        process = self._process
        assert process is not None
        watching = asyncio.create_task(_watch(process, self._memory))
        is_answered = False
        try:
            async with asyncio.timeout(seconds):
                answer = self._decode(await _exchange(process, request))
            is_answered = True
        except TimeoutError:
            raise self._exceeded(f"took more than {seconds:g} seconds") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if self._is_closed:
                raise _unloaded() from None
            limit = format_bytes(self._memory)
            raise self._exceeded(f"took more than {limit} of memory, or crashed") from None
        finally:
            watching.cancel()
            if not is_answered:  # also when the request was cancelled: its work is not wanted
                await _end(process)
        if isinstance(answer, Failed):
            raise errors.rebuild(answer.kind, answer.message, answer.data, default=EngineError)
        return answer


async def _exchange(process: asyncio.subprocess.Process, request: msgspec.Struct) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(encode(request))
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "big")
    if length > MAX_FRAME:
        raise ConnectionError("that is no message")
    return await process.stdout.readexactly(length)


async def _watch(process: asyncio.subprocess.Process, memory: int) -> None:
    """End the process when it takes more memory than this, also where the system has no limit."""
    with suppress(psutil.Error, ProcessLookupError):  # it has just ended
        watched = psutil.Process(process.pid)
        while True:
            await asyncio.sleep(_LOOK_S)
            if watched.memory_info().rss > memory:
                process.kill()
                return


def _unloaded() -> NotFoundError:
    return NotFoundError("The model was unloaded meanwhile, and another one may be loaded now.")


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
