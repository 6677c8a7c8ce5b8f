"""What the node sends in pieces: a reply, or the load of a model. Each ends in one signal."""

import logging
import time
from collections.abc import Callable, Mapping
from itertools import chain

import msgspec
from msgspec import Struct
from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.v1.answer_shapes import ChatChunkChoice, Delta, Usage
from potluck.api.v1.tagged_reply import TaggedReply
from potluck.api.values.errors import ApiError
from potluck.api.values.schema import ClusterState, LoadProgress
from potluck.api.values.timings import Timings
from potluck.api.values.weights import VerifyProgress
from potluck.errors import ClosedError
from potluck_app.chats.values import Stats
from potluck_app.http import EventStream, Problem

logger = logging.getLogger(__name__)

TOKEN_INTERVAL_MS = 33  # 30 updates a second; nobody reads faster, and drawing costs time
_REST = 4  # at most a quarter of the time is for drawing a reply
MOST_LOSSES = 3  # of the node in one reply: it may be the reply that ends it
_AGAIN_MS = 200  # before a lost reply is asked for again: the window needs a moment to notice, too
_INTERRUPTED = "The reply was interrupted: Potluck's background process ended again and again."


class ReplyEnd(Struct, frozen=True, kw_only=True):
    """How a reply ended, with its figures; `error` is a sentence if it failed.

    Attributes:
        stats: None if nothing of the answer came.
        code: of the error, as in `potluck.errors`.
    """

    stats: Stats | None = None
    error: str | None = None
    code: str | None = None
    stopped: bool = False  # whether the person stopped it
    cut: bool = False  # whether it had as many tokens as it may have, before its end


class _ChatEvent(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat: a chunk, or an error after the start of the answer."""

    choices: tuple[ChatChunkChoice, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()  # in the first one, which comes with the first token
    model: str | None = None
    usage: Usage | None = None
    potluck: Timings | None = None
    error: ApiError | None = None


class Reply(QObject):
    """A reply that is being received.

    An answer is a function of its request, seed included. When the node is lost, the next one is asked
    for the same reply, after the tokens that came already.

    Args:
        parent: of the object.
        body: the request, with a seed.
        clock: in seconds.

    Signals:
        asks: an EventStream that the reply is to come by, and the request for what has not come yet.
        waits: a comment of the node: what the reply waits for.
        text: more text, at most 30 times a second.
        finished: a ReplyEnd; it is the last signal.
    """

    asks = Signal(object, object)
    waits = Signal(str)
    text = Signal(str)
    finished = Signal(object)

    def __init__(
        self,
        parent: QObject,
        body: Mapping[str, object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self._body, self._clock = body, clock
        self._losses = 0
        self._asked = clock()
        self._begun: float | None = None  # when the model was loaded
        self._first: float | None = None  # when the first token came
        self._newest = self._asked
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._pending: list[str] = []
        self._rest: list[Delta] = []  # text that is no token's: known only when the reply is whole
        self._reply = TaggedReply(without_thoughts=bool(body.get("continue_final_message")))
        self._last = _ChatEvent()
        self._is_whole = self._is_cut = False
        self._tick = QTimer(self, singleShot=True, interval=TOKEN_INTERVAL_MS)
        self._tick.timeout.connect(self._flush)
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_MS)
        self._again.timeout.connect(self.begin)
        self._is_over = False

    def begin(self) -> None:
        """Ask for the reply, or for the rest of it."""
        self.stream = EventStream(self)
        self.stream.received.connect(self._on_event)
        self.stream.commented.connect(self.waits)
        self.stream.ended.connect(self._on_end)
        self._rest.clear()
        rest = dict(self._body)
        if self._tokens:
            rest |= {"known_token_ids": tuple(self._tokens), "model": self._last.model}
        self.asks.emit(self.stream, rest)

    def show_model(self, state: ClusterState) -> None:
        """Note when the model is ready: from then on the prompt is read, before that it is loaded."""
        if self._begun is None and state.model.state == "ready":
            self._begun = self._clock()

    def stop(self) -> None:
        """End the reply here; the text received so far stays."""
        if not self._is_over:
            self.stream.close()
            self._finish(ReplyEnd(stats=self.figures(), stopped=True))

    def figures(self) -> Stats | None:
        """Return the node's figures, or before its last event, the window's; None: no token came."""
        usage, timings = self._last.usage, self._last.potluck
        first_s = 0.0
        if self._begun is not None and self._first is not None:
            first_s = self._first - self._begun
        loading_s = 0.0 if self._begun is None else self._begun - self._asked
        if usage is not None and timings is not None:
            return Stats(
                tokens=usage.completion_tokens,
                prompt_tokens=usage.prompt_tokens,
                tokens_per_s=timings.tokens_per_s,
                time_to_first_token_s=first_s if self._losses else timings.time_to_first_token_s,
                model=self._last.model,
                loading_s=loading_s,
            )
        if self._begun is None or self._first is None:
            return None
        seconds = self._newest - self._first
        return Stats(
            tokens=len(self._tokens),
            prompt_tokens=self._prompt_tokens,
            tokens_per_s=(len(self._tokens) - 1) / seconds if seconds > 0 else 0.0,
            time_to_first_token_s=first_s,
            model=self._last.model,
            loading_s=loading_s,
        )

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
            error = event.error
            if error.code == ClosedError.code:
                self._lose()
            else:
                self._finish(ReplyEnd(stats=self.figures(), error=error.message, code=error.code))
            return
        self._count(event)
        for choice in event.choices:
            self._is_cut |= choice.finish_reason == "length"
            if choice.token_ids:
                self._pending.append(self._reply.more(choice.delta))
            else:
                self._rest.append(choice.delta)
        self._last = _ChatEvent(
            model=event.model or self._last.model,
            usage=event.usage or self._last.usage,
            potluck=event.potluck or self._last.potluck,
        )
        if self._pending and not self._tick.isActive():
            self._tick.start()

    def _count(self, event: _ChatEvent) -> None:
        now = self._clock()
        if self._begun is None:
            self._begun = now
        self._prompt_tokens = self._prompt_tokens or len(event.prompt_token_ids)
        came = [c.token_ids for c in event.choices if isinstance(c.token_ids, list)]
        if any(came):
            self._tokens += chain.from_iterable(came)
            self._newest = now
            if self._first is None:
                self._first = now

    def _on_end(self, problem: Problem | None) -> None:
        if problem is None and self._is_whole:
            self._pending += [self._reply.more(delta) for delta in self._rest]
            self._finish(ReplyEnd(stats=self.figures(), cut=self._is_cut))
        elif problem is None or problem.unreachable:  # Qt does not report every broken stream
            self._lose()
        else:
            self._finish(ReplyEnd(stats=self.figures(), error=problem.message, code=problem.code))

    def _lose(self) -> None:
        """Ask the next node for the rest, unless the reply has lost too many."""
        self._losses += 1
        if self._losses < MOST_LOSSES:
            self._again.start()
        else:
            self._finish(ReplyEnd(stats=self.figures(), error=_INTERRUPTED))

    def _flush(self) -> None:
        if self._pending:
            text = "".join(self._pending)
            self._pending.clear()
            begun = self._clock()
            self.text.emit(text)
            # A long list or paragraph takes long to draw: the window keeps time for the rest.
            drawn_ms = round(1000 * (self._clock() - begun))
            self._tick.setInterval(max(TOKEN_INTERVAL_MS, _REST * drawn_ms))

    def _finish(self, end: ReplyEnd) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._tick.stop()
        self._again.stop()
        self._flush()
        self.finished.emit(end)
        self.deleteLater()


class Load(QObject):
    """A model that is being loaded, or checked.

    Args:
        parent: of the object.
        shape: the type of its events.

    Signals:
        progress: a LoadProgress or a VerifyProgress; the one with `ready` is the last.
        failed: a Problem.
    """

    progress = Signal(object)
    failed = Signal(object)

    def __init__(
        self, parent: QObject, shape: type[LoadProgress | VerifyProgress] = LoadProgress
    ) -> None:
        super().__init__(parent)
        self._shape = shape
        self.stream = EventStream(self)
        self.stream.received.connect(self._on_event)
        self.stream.ended.connect(self._on_end)
        self._is_ready = False

    def _on_event(self, data: bytes) -> None:
        try:
            progress = msgspec.json.decode(data, type=self._shape)
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
                "Potluck stopped in the background before it was done with the model. Try again."
            )
        if problem is not None:
            self.failed.emit(problem)
        self.deleteLater()
