"""Split the raw text of an answer into text, reasoning and calls, while it is generated.

The text is raw: special tokens are in it as they are written. Whatever a model writes, nothing is lost:
what begins as a call and is none becomes text.
"""

import re
from collections.abc import Callable

from potluck.model.answers.calls import CALL_READERS, CallReader
from potluck.model.answers.events import CallArguments, CallBegins, Part, Text, Thought
from potluck.model.answers.format import AnswerFormat, Schemas
from potluck.model.answers.reader import SPACE, Reader, Steps, UnreadableError

_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")


class AnswerParser:
    """The parts of one answer.

    Attributes:
        calls: how many calls have begun.
    """

    def __init__(
        self,
        form: AnswerFormat,
        schemas: Schemas | None,
        *,
        is_reasoning: bool = False,
        goes_on: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            form: of the model's answers.
            schemas: of the tools that the model may call; None: calls are text like any other.
            is_reasoning: the prompt has begun the reasoning.
            goes_on: the prompt has begun the text.
        """
        self.calls = 0
        self._form = form
        self._reader = Reader()
        self._parts: list[Part] = []
        self._calls: CallReader | None = None
        self._calls_are_wanted = schemas is not None
        if form.calls.kind == "harmony":
            self._steps = self._harmony(goes_on=goes_on)
        else:
            if schemas is not None:
                kind = CALL_READERS[form.calls.kind]
                self._calls = kind(self._reader, form.calls, schemas, self._add)
            self._steps = self._answer(is_reasoning)
        self._is_over = False

    def push(self, text: str) -> list[Part]:
        """The parts that a piece of the text adds."""
        self._reader.rest += text
        return self._go_on()

    def end(self) -> list[Part]:
        """The rest of the parts: no more text comes."""
        self._reader.is_ended = True
        return self._go_on()

    def _go_on(self) -> list[Part]:
        if not self._is_over:
            try:
                next(self._steps)
            except StopIteration:
                self._is_over = True
        parts, self._parts = self._parts, []
        return parts

    def _add(self, part: Part) -> None:
        if isinstance(part, CallBegins):
            self.calls += 1
            self._parts.append(part)
        elif part.text:
            self._parts.append(part)

    def _answer(self, is_reasoning: bool) -> Steps[None]:
        """Read an answer."""
        form, reasoning = self._form, self._form.reasoning
        text = _Trimmed(lambda text: self._add(Text(text)))
        if is_reasoning and reasoning is not None:
            yield from self._thoughts(reasoning.closes)
            text.is_begun = False
        marker = self._calls.marker if self._calls else ""
        if self._calls and not marker:
            yield from self._call(text)
        tags = (reasoning.opens, reasoning.closes) if reasoning is not None else ()
        marks = {marker, form.content_opens, form.content_closes, *tags} - {""}
        while found := (yield from self._reader.until(tuple(marks), text)):
            if found in tags and not text.is_empty:  # reasoning comes first, or not at all
                text(found)
                continue
            if form.content_opens:  # what is not inside belongs to the format
                text.is_open = found not in (form.content_closes, marker)
            if reasoning is not None and found == reasoning.opens:
                yield from self._thoughts(reasoning.closes)
                text.is_begun = False
            elif found == marker:
                yield from self._call(text)
        if not self.calls:
            text.end()

    def _thoughts(self, closes: str) -> Steps[None]:
        thoughts = _Trimmed(lambda text: self._add(Thought(text)))
        thoughts.is_begun = False
        yield from self._reader.until((closes,), thoughts)

    def _call(self, emit: Callable[[str], None]) -> Steps[None]:
        """Read calls after their marker. What is none becomes text again."""
        assert self._calls is not None
        before = self.calls
        self._reader.taken = [self._calls.marker]
        try:
            yield from self._calls.read()
        except UnreadableError:
            if self.calls == before:
                emit("".join(self._reader.taken))
        self._reader.taken = None

    def _harmony(self, *, goes_on: bool) -> Steps[None]:
        """Read an answer of messages, each with a header that says what it is; the first has none if it goes on."""
        kind: Callable[[str], Part]
        if goes_on and not (
            yield from self._reader.until(_HARMONY_ENDS, lambda text: self._add(Text(text)))
        ):
            return
        while True:
            header: list[str] = []
            if not (yield from self._reader.until(("<|message|>",), header.append)):
                self._add(Text("".join(header)))  # no message at all
                return
            called = _RECIPIENT.search("".join(header))
            if called and self._calls_are_wanted:
                self._add(CallBegins(called[1]))
                kind = CallArguments
            else:
                kind = Thought if "analysis" in "".join(header) else Text
            if not (
                yield from self._reader.until(
                    _HARMONY_ENDS, lambda text, kind=kind: self._add(kind(text))
                )
            ):
                return


class _Trimmed:
    """Passes a text on without the white space at its beginning and its end.

    Attributes:
        is_begun: whether white space is part of the text: False after reasoning.
        is_open: whether anything is passed on.
        is_empty: whether nothing was passed on yet.
    """

    def __init__(self, emit: Callable[[str], None]) -> None:
        self.is_begun = self.is_open = self.is_empty = True
        self._emit = emit
        self._held: str = ""

    def __call__(self, text: str) -> None:
        if not self.is_open:
            return
        text = self._held + text
        inner = text.rstrip(SPACE)
        self._held = text[len(inner) :]
        if not inner:
            return
        if not self.is_begun:
            inner = inner.lstrip(SPACE)
            self.is_begun = True
        self.is_empty = False
        self._emit(inner)

    def end(self) -> None:
        """Pass on the white space at the end after all."""
        if self.is_begun:
            self._emit(self._held)
