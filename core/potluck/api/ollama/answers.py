"""Format the events of one generation as Ollama's lines, in a stream or as one."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from msgspec import UNSET, Raw
from msgspec.structs import replace

from potluck.api.events import CallPiece, Finished, Piece, Started
from potluck.api.ollama.shapes import AnswerMessage, Call, CalledFunction, Chunk
from potluck.api.v1.answers import object_of, whole_calls

_NANOSECONDS = 10**9


class LineFormat:
    """One answer, in lines. Use an instance for one answer: it collects the pieces of calls.

    Attributes of the call:
        is_chat: it answers `/api/chat`, and not `/api/generate`.
        is_load: nothing was asked, so that the model is only loaded.
        clock: returns the Unix time.
    """

    def __init__(
        self,
        model: str,
        *,
        is_chat: bool,
        is_load: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._model, self._is_chat, self._is_load = model, is_chat, is_load
        self._clock, self._began = clock, clock()
        self._calls: list[Piece] = []  # of the call that is not whole yet
        self._started = Started(prompt_token_ids=())

    def first(self, started: Started) -> None:
        """The beginning of the answer, which has no line."""
        self._started = started

    def waiting(self) -> Chunk:
        """A line that adds nothing."""
        return self._line()

    def piece(self, piece: Piece) -> Iterator[Chunk]:
        """More of it; a call of a tool comes when it is whole."""
        if piece.text or piece.reasoning:
            yield self._line(piece.text, piece.reasoning)
        for call in piece.calls:
            if call.id:
                yield from self._finished_calls()
            self._calls.append(Piece(text="", token_ids=(), calls=(call,)))

    def last(self, finished: Finished) -> Iterator[Chunk]:
        """The end of it, with its figures."""
        yield from self._finished_calls()
        timings, tokens = finished.timings, finished.completion_tokens
        total_s = self._clock() - self._began
        decode_s = (tokens - 1) / timings.tokens_per_s if timings.tokens_per_s and tokens else 0.0
        prompt_s = timings.time_to_first_token_s
        reason = "length" if finished.reason == "length" else "stop"
        yield replace(
            self._line(),
            done=True,
            done_reason="load" if self._is_load else reason,
            total_duration=nanoseconds(total_s),
            load_duration=nanoseconds(max(0.0, total_s - decode_s - prompt_s)),
            prompt_eval_count=len(self._started.prompt_token_ids),
            prompt_eval_duration=nanoseconds(prompt_s),
            eval_count=tokens,
            eval_duration=nanoseconds(decode_s),
        )

    def _finished_calls(self) -> Iterator[Chunk]:
        if self._calls:
            yield self._line(calls=tuple(map(_call, whole_calls(self._calls))))
            self._calls = []

    def _line(self, text: str = "", thinking: str = "", calls: tuple[Call, ...] = ()) -> Chunk:
        line = Chunk(model=self._model, created_at=time_text(self._clock()))
        if not self._is_chat:
            return replace(line, response=text, thinking=thinking or UNSET)
        message = AnswerMessage(content=text, thinking=thinking or UNSET, tool_calls=calls or UNSET)
        return replace(line, message=message)


def joined(lines: Iterable[Chunk]) -> Chunk:
    """All lines of an answer as one."""
    *before, last = lines
    thinking = "".join(_thinking(line) for line in before) or UNSET
    if not last.message:
        text = "".join(line.response or "" for line in before)
        return replace(last, response=text, thinking=thinking)
    messages = [line.message for line in before if line.message]
    calls = tuple(call for message in messages for call in message.tool_calls or ())
    whole = AnswerMessage(
        content="".join(message.content for message in messages),
        thinking=thinking,
        tool_calls=calls or UNSET,
    )
    return replace(last, message=whole)


def time_text(seconds: float) -> str:
    """A Unix time as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _thinking(line: Chunk) -> str:
    return (line.message.thinking if line.message else line.thinking) or ""


def _call(call: CallPiece) -> Call:
    arguments = Raw(object_of(call).encode())
    function = CalledFunction(name=call.name, arguments=arguments, index=call.index)
    return Call(id=call.id, function=function)


def nanoseconds(seconds: float) -> int:
    """Seconds as Ollama counts them."""
    return round(seconds * _NANOSECONDS)
