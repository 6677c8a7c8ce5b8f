"""What the node sends in pieces: a reply, or the load of a model. Each ends in one signal."""

import logging

import msgspec
from msgspec import Struct
from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.openai import ApiError, ChatChunkChoice, Timings, Usage
from potluck.api.schema import LoadProgress
from potluck_app.history import Stats
from potluck_app.http import EventStream, Problem

logger = logging.getLogger(__name__)

TOKEN_INTERVAL_MS = 33  # 30 updates a second; nobody reads faster, and drawing costs time
_INTERRUPTED = "The reply was interrupted: Potluck's background process ended. It starts again now."


class ReplyEnd(Struct, frozen=True, kw_only=True):
    """How a reply ended: `stats` if it is complete, `error` with a sentence if it failed."""

    stats: Stats | None = None
    error: str | None = None
    stopped: bool = False  # whether the person stopped it


class _ChatEvent(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat: a chunk, or an error after the start of the answer."""

    choices: tuple[ChatChunkChoice, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    potluck: Timings | None = None
    error: ApiError | None = None


class Reply(QObject):
    """A reply that is being received.

    Signals:
        text: more text, at most 30 times a second.
        finished: a ReplyEnd; it is the last signal.
    """

    text = Signal(str)
    finished = Signal(object)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.stream = EventStream(self)
        self.stream.received.connect(self._on_event)
        self.stream.ended.connect(self._on_end)
        self._pending: list[str] = []
        self._last = _ChatEvent()
        self._is_whole = False
        self._tick = QTimer(self, singleShot=True, interval=TOKEN_INTERVAL_MS)
        self._tick.timeout.connect(self._flush)
        self._is_over = False

    def stop(self) -> None:
        """End the reply here; the text received so far stays."""
        if not self._is_over:
            self.stream.close()
            self._finish(ReplyEnd(stopped=True))

    def _on_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_whole = True
            return
        try:
            event = msgspec.json.decode(data, type=_ChatEvent)
        except msgspec.MsgspecError as error:
            logger.warning("an event of a reply could not be read: %s", error)
            return
        if event.error is not None:
            self.stream.close()
            self._finish(ReplyEnd(error=event.error.message))
            return
        for choice in event.choices:
            if isinstance(choice.delta.content, str) and choice.delta.content:
                self._pending.append(choice.delta.content)
        self._last = _ChatEvent(
            model=event.model or self._last.model,
            usage=event.usage or self._last.usage,
            potluck=event.potluck or self._last.potluck,
        )
        if self._pending and not self._tick.isActive():
            self._tick.start()

    def _on_end(self, problem: Problem | None) -> None:
        if problem is not None:
            message = _INTERRUPTED if problem.unreachable else problem.message
            self._finish(ReplyEnd(error=message))
        elif not self._is_whole:  # Qt does not always report a broken stream as an error
            self._finish(ReplyEnd(error=_INTERRUPTED))
        else:
            self._finish(ReplyEnd(stats=self._stats()))

    def _stats(self) -> Stats | None:
        usage, timings = self._last.usage, self._last.potluck
        if usage is None or timings is None:
            return None
        return Stats(
            tokens=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
            tokens_per_s=timings.tokens_per_s,
            time_to_first_token_s=timings.time_to_first_token_s,
            model=self._last.model,
        )

    def _flush(self) -> None:
        if self._pending:
            text = "".join(self._pending)
            self._pending.clear()
            self.text.emit(text)

    def _finish(self, end: ReplyEnd) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._tick.stop()
        self._flush()
        self.finished.emit(end)
        self.deleteLater()


class Load(QObject):
    """A model that is being loaded.

    Signals:
        progress: a LoadProgress; the one with `ready` is the last.
        failed: a Problem.
    """

    progress = Signal(object)
    failed = Signal(object)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.stream = EventStream(self)
        self.stream.received.connect(self._on_event)
        self.stream.ended.connect(self._on_end)
        self._is_ready = False

    def _on_event(self, data: bytes) -> None:
        try:
            progress = msgspec.json.decode(data, type=LoadProgress)
        except msgspec.MsgspecError as error:
            logger.warning("an event of a load could not be read: %s", error)
            return
        if progress.state == "failed":
            error = progress.error
            message = error.message if error else progress.message
            self.stream.close()
            self.failed.emit(Problem(message, code=error.code if error else "error"))
            self.deleteLater()
            return
        self._is_ready = progress.state == "ready"
        self.progress.emit(progress)

    def _on_end(self, problem: Problem | None) -> None:
        if problem is None and not self._is_ready:
            problem = Problem(
                "The model was not loaded: Potluck stopped in the background before it was done."
            )
        if problem is not None:
            self.failed.emit(problem)
        self.deleteLater()
