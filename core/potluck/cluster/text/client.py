"""The node's side of a text process: what a model's files make of text, and what they may cost."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from potluck import errors
from potluck.cluster.processes.messages import MAX_FRAME, encode
from potluck.cluster.processes.start import start_process
from potluck.cluster.text.messages import (
    EncodeChat,
    Encoded,
    EncodeText,
    Failed,
    FromText,
    ModelOpened,
    OpenModel,
    ToText,
    decode_from_text,
)
from potluck.errors import BrokenModelError, EngineError, NotFoundError, format_bytes
from potluck.model.detokenizer import Vocabulary
from potluck.reasons import reason

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 4
_LOOK_S = 0.1  # between two looks at the memory of the process
# One thread, whose work is over when a request is: an idle process takes no time, and less memory.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """What a model's tokenizer and template may cost.

    The largest published tokenizers take 0.6 GB and some seconds to read on a slow computer.
    """

    memory: int = 2 << 30  # bytes
    open_s: float = 60.0
    encode_s: float = 20.0


class ModelText:
    """The words of one model: text becomes token ids in a process of its own.

    The process is started when it is first needed, and again when it had to be ended. A request
    waits for those before it. Token ids become text here, by the vocabulary.

    Attributes:
        folder: of the model's tokenizer and chat template.
        vocabulary, stop_ids, stop_strings: as in `ChatFormat`; known once the model is open.
    """

    def __init__(self, folder: Path, log_path: Path, limits: TextLimits | None = None) -> None:
        """Use `open_text`."""
        self.folder = folder
        self.vocabulary: Vocabulary
        self.stop_ids: frozenset[int] = frozenset()
        self.stop_strings: tuple[str, ...] = ()
        self._log_path = log_path
        self._limits = limits or TextLimits()
        self._turns = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    async def encode(self, text: str) -> list[int]:
        """The token ids of a text.

        Raises:
            BrokenModelError: the tokenizer fails, or exceeds its limits.
        """
        return await self._encode(EncodeText(text=text))

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation, up to where the answer begins.

        Args:
            messages: each with `role` and `content`.

        Raises:
            PromptError: the conversation is malformed, or the model's template refuses it.
            BrokenModelError: tokenizer or template fail, or exceed their limits.
        """
        return await self._encode(EncodeChat(messages=[dict(message) for message in messages]))

    async def open(self) -> None:
        """Start the process, and read the model's files.

        Raises:
            BrokenModelError: a file is missing or unreadable, or reading it exceeds the limits.
        """
        async with self._turns:
            await self._start()

    async def close(self) -> None:
        """End the process, and the request under way with an error. No other one is started."""
        self._is_closed = True
        await self._stop()

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _encode(self, request: EncodeText | EncodeChat) -> list[int]:
        async with self._turns:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            answer = await self._ask(request, self._limits.encode_s)
        assert isinstance(answer, Encoded)
        return answer.token_ids

    async def _start(self) -> None:
        if self._is_closed:
            raise _unloaded()
        try:
            self._process = await start_process(
                "potluck.cluster.text.process", self._log_path, _ENVIRONMENT
            )
        except OSError as error:
            raise EngineError(
                f"The process for the model's words cannot be started: {reason(error)}. Restart Potluck."
            ) from error
        limits = self._limits
        request = OpenModel(
            folder=str(self.folder),
            memory=limits.memory,
            open_s=limits.open_s,
            encode_s=limits.encode_s,
        )
        try:
            opened = await self._ask(request, limits.open_s)
        except BrokenModelError:
            await self._stop()
            raise
        assert isinstance(opened, ModelOpened)
        self.vocabulary = opened.vocabulary
        self.stop_ids, self.stop_strings = opened.stop_ids, opened.stop_strings

    async def _ask(self, request: ToText, seconds: float) -> FromText:
        """The answer to a request. Without one, the process is ended.

        Raises:
            PotluckError: the error that the process answered with.
            BrokenModelError: it did not answer in time, or took too much memory.
        """
        process = self._process
        assert process is not None
        watching = asyncio.create_task(_watch(process, self._limits.memory))
        is_answered = False
        try:
            async with asyncio.timeout(seconds):
                answer = await _exchange(process, request)
            is_answered = True
        except TimeoutError:
            raise self._exceeded(f"took more than {seconds:g} seconds") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if self._is_closed:
                raise _unloaded() from None
            limit = format_bytes(self._limits.memory)
            raise self._exceeded(f"took more than {limit} of memory, or crashed") from None
        finally:
            watching.cancel()
            if not is_answered:  # also when the request was cancelled: its work is not wanted
                await _end(process)
        if isinstance(answer, Failed):
            raise errors.rebuild(answer.kind, answer.message, answer.data, default=EngineError)
        return answer

    def _exceeded(self, what: str) -> BrokenModelError:
        logger.error("a text process was ended model=%s: it %s", self.folder, what)
        return BrokenModelError(
            f"The tokenizer or the chat template of {self.folder.name} {what}, and was stopped."
            " The model's files are broken, or made to do harm: use another model, or download it"
            f" again from a source that you trust. The log is {self._log_path}.",
            folder=str(self.folder),
        )


async def open_text(folder: Path, log_path: Path, limits: TextLimits | None = None) -> ModelText:
    """Read the tokenizer and the chat template of a model's folder, in a process of their own.

    Args:
        folder: of the model.
        log_path: the file that takes what the process has to say.
        limits: of the process.

    Raises:
        BrokenModelError: a file is missing or unreadable, or reading it exceeds the limits.
    """
    text = ModelText(folder, log_path, limits)
    await text.open()
    return text


async def _exchange(process: asyncio.subprocess.Process, request: ToText) -> FromText:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(encode(request))
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "big")
    if length > MAX_FRAME:
        raise ConnectionError("that is no message")
    return decode_from_text(await process.stdout.readexactly(length))


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
