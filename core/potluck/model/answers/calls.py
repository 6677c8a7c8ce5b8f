"""Read calls of tools, each kind in its own way, while they are written.

Every reader begins after the marker of its format. What it has read is passed on at once, so that a
long argument, such as the text of a file, streams as everything else does.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import cast

from potluck.model.answers.events import CallArguments, CallBegins, Part
from potluck.model.answers.format import ANY, KEY, CallFormat, CallKind, Schemas
from potluck.model.answers.literals import gemma_arguments, json_literal, python_calls
from potluck.model.answers.reader import Reader, Steps, UnreadableError, json_value

_CDATA, _CDATA_END = "<![CDATA[", "]]>"  # around text that has tags in it
_NAME = re.compile(r"[\w.:/-]{1,256}")


class CallReader(ABC):
    """Reads the calls of one answer.

    Attributes:
        marker: by which the calls are noticed.
    """

    def __init__(
        self, reader: Reader, form: CallFormat, schemas: Schemas, add: Callable[[Part], None]
    ) -> None:
        self.marker = form.marker
        self._reader, self._form, self._schemas = reader, form, schemas
        self._add = add

    def read(self) -> Steps[None]:
        """Read the calls after the marker.

        Raises:
            UnreadableError: what comes is no call.
        """
        form, reader = self._form, self._reader
        if not form.section_opens:
            yield from self._after_marker(form.opens)
            yield from self._one()
            yield from reader.skip(form.closes, or_end=True)
            return
        yield from self._after_marker(form.section_opens)
        if form.is_list:
            yield from reader.skip("[")
        while (yield from self._opens()):
            yield from self._one()
            yield from reader.skip(form.closes, or_end=True)
            yield from reader.skip(",")
        if form.is_list:
            yield from reader.skip("]")
        yield from reader.skip(form.section_closes, or_end=True)

    def _after_marker(self, opening: str) -> Steps[None]:
        for part in opening.split(ANY)[1:]:
            yield from self._reader.text_until(part.strip())

    def _opens(self) -> Steps[bool]:
        """Whether another call begins."""
        if not self._form.opens:
            yield from self._reader.space()
            return (yield from self._reader.peek()) == "{"
        first, *rest = self._form.opens.split(ANY)
        if not (yield from self._reader.skip(first)):
            return False
        for part in rest:
            yield from self._reader.text_until(part.strip())
        return True

    @abstractmethod
    def _one(self) -> Steps[None]:
        """Read one call, without what is around it."""

    def _begin(self, name: str) -> None:
        name = name.strip().strip("\"'")
        if not _NAME.fullmatch(name):
            raise UnreadableError
        self._add(CallBegins(name))

    def _arguments(self, text: str) -> None:
        self._add(CallArguments(text))

    def _json_arguments(self, emit: Callable[[str], None]) -> Steps[None]:
        """Read arguments, as an object or as its text; anything else is none."""
        yield from self._reader.space()
        if (yield from self._reader.peek()) == "{":
            yield from json_value(self._reader, emit)
            return
        parts: list[str] = []
        yield from json_value(self._reader, parts.append)
        text = json_literal("".join(parts))
        emit(text if isinstance(text, str) and isinstance(json_literal(text), dict) else "{}")


class JsonCalls(CallReader):
    """Such as {"name": "add", "arguments": {"a": 1}}."""

    def _one(self) -> Steps[None]:
        call = _JsonCall()
        yield from self._object(call)
        if call.name is None:
            raise UnreadableError
        if not call.has_arguments:
            self._arguments("{}")

    def _object(self, call: "_JsonCall") -> Steps[None]:
        reader = self._reader
        yield from reader.expect("{")
        while not (yield from reader.skip("}")):
            key = yield from self._text()
            yield from reader.expect(":")
            yield from self._member(call, key)
            if not (yield from reader.skip(",")):
                yield from reader.expect("}")
                return

    def _member(self, call: "_JsonCall", key: str) -> Steps[None]:
        form = self._form
        if form.wrapper_key and key == form.wrapper_key:
            yield from self._object(call)
        elif not form.name_key:
            self._named(call, key)
            yield from self._arguments_of(call)
        elif key in (form.name_key, "name") and call.name is None:
            self._named(call, (yield from self._text()))
        elif key in (form.arguments_key, "arguments", "parameters"):
            yield from self._arguments_of(call)
        else:
            yield from json_value(self._reader, lambda _: None)

    def _named(self, call: "_JsonCall", name: str) -> None:
        call.name = name
        self._begin(name)
        for text in call.early:
            self._arguments(text)

    def _arguments_of(self, call: "_JsonCall") -> Steps[None]:
        call.has_arguments = True
        yield from self._json_arguments(call.early.append if call.name is None else self._arguments)

    def _text(self) -> Steps[str]:
        parts: list[str] = []
        yield from json_value(self._reader, parts.append)
        text = json_literal("".join(parts))
        if not isinstance(text, str):
            raise UnreadableError
        return text


class _JsonCall:
    """What is known of a call: its keys come in any order."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_arguments = False
        self.early: list[str] = []  # arguments that came before the name


class NamedCalls(CallReader):
    """Such as add{"a": 1}, with something between the two."""

    def _one(self) -> Steps[None]:
        first, *rest = (part.strip() for part in self._form.after_name.split(ANY))
        words = first.split()
        self._begin((yield from self._reader.text_until(words[0])))
        for word in words[1:]:
            yield from self._reader.expect(word)
        for part in rest:
            yield from self._reader.text_until(part)
        yield from self._json_arguments(self._arguments)


class TaggedCalls(CallReader):
    """Such as <function=add><parameter=a>1</parameter></function>."""

    def _one(self) -> Steps[None]:
        form, reader = self._form, self._reader
        name = yield from self._name()
        self._begin(name)
        properties = self._schemas.get(name, {}).get("properties")
        types = cast("Mapping[str, object]", properties if isinstance(properties, dict) else {})
        separator = "{"
        # The end first: arguments may open with the same characters.
        while not (yield from reader.skip(form.closes)):
            yield from reader.expect(form.argument_opens)
            key, mark = yield from self._key()
            self._arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            is_text = mark == form.string_mark if form.string_mark else None
            yield from self._value(key, is_text, types.get(key))
        self._arguments("{}" if separator == "{" else "}")

    def _name(self) -> Steps[str]:
        """Read the name, and what comes after it."""
        form, reader = self._form, self._reader
        first, *rest = (part.strip() for part in form.after_name.split(ANY))
        if first:
            name = yield from reader.text_until(first)
            for part in rest:
                yield from reader.text_until(part)
            return name.strip()
        parts: list[str] = []
        ends = [each.split()[0] for each in (form.argument_opens, form.closes) if each]
        found = yield from reader.until(ends, parts.append)
        if not found:
            raise UnreadableError
        reader.put_back(found)
        return "".join(parts).strip()

    def _key(self) -> Steps[tuple[str, str]]:
        """Read the name of an argument, to where its value begins, and the mark of its type."""
        reader, equals = self._reader, self._form.argument_equals
        found: list[str] = []
        for part in equals.split(ANY):
            first, *words = part.split()
            found.append((yield from reader.text_until(first)))
            for word in words:
                yield from reader.expect(word)
        if equals.endswith("\n") and (yield from reader.peek()) == "\n":
            reader.take(1)
        return found[0].strip(), found[-1]

    def _value(self, key: str, is_text: bool | None, schema: object) -> Steps[None]:
        """Read a value: text as it is, anything else as JSON."""
        closes = self._form.argument_closes.replace(KEY, key)
        if is_text is None:
            is_text = _is_text(schema)
        parts: list[str] = []
        held = _HeldLineEnd(self._escaped if is_text else parts.append, closes.startswith("\n"))
        if is_text:
            self._arguments('"')
        if (yield from self._reader.starts(_CDATA)):
            self._reader.take(len(_CDATA))
            closes = f"{_CDATA_END}{closes.strip()}"
        if not (yield from self._reader.until((closes.strip(),), held)):
            raise UnreadableError
        if is_text:
            self._arguments('"')
        else:
            self._arguments(json.dumps(json_literal("".join(parts)), ensure_ascii=False))

    def _escaped(self, text: str) -> None:
        self._arguments(json.dumps(text, ensure_ascii=False)[1:-1])


class _HeldLineEnd:
    """Holds a line end back: one that comes just before the end of a value belongs to the format."""

    def __init__(self, emit: Callable[[str], None], is_wanted: bool) -> None:
        self._emit, self._is_wanted, self._held = emit, is_wanted, ""

    def __call__(self, text: str) -> None:
        if not text:
            return
        text = self._held + text
        self._held = "\n" if self._is_wanted and text.endswith("\n") else ""
        self._emit(text.removesuffix(self._held) if self._held else text)


def _is_text(schema: object) -> bool:
    """Whether a value can only be text."""
    kinds = cast("dict[str, object]", schema).get("type") if isinstance(schema, dict) else None
    return kinds == "string" or kinds == ["string"]


class PythonCalls(CallReader):
    """Such as [add(a=1)]."""

    def read(self) -> Steps[None]:
        """Read the calls after the marker, when all are there."""
        text = yield from self._reader.text_until(self._form.section_closes)
        for name, arguments in python_calls(text):
            self._begin(name)
            self._arguments(json.dumps(arguments, ensure_ascii=False))

    def _one(self) -> Steps[None]:
        raise NotImplementedError


class GemmaCalls(CallReader):
    """Such as add{a:1,b:<|"|>text<|"|>}."""

    def _one(self) -> Steps[None]:
        name = yield from self._reader.text_until("{")
        self._begin(name)
        text = yield from self._reader.text_until(self._form.closes)
        self._arguments(json.dumps(gemma_arguments("{" + text), ensure_ascii=False))


CALL_READERS: Mapping[CallKind, type[CallReader]] = {
    "json": JsonCalls,
    "named": NamedCalls,
    "tagged": TaggedCalls,
    "python": PythonCalls,
    "gemma": GemmaCalls,
}
