"""The grammar of calls, in `llguidance`'s form of Lark: names of tools, and arguments by their schemas.

Literals of a format may have special tokens in them. A grammar names those by their number, since the same
text in ordinary tokens is something else.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from potluck.model.answers.format import ANY, KEY, AnswerFormat, CallFormat
from potluck.model.answers.schemas import closed

_SPACE = r"ws: /[ \t]{0,2}|(\r?\n){1,2}[ \t]{0,40}/"
# Of clients' schemas, what is not supported is left to the model.
_LENIENT = {"lenient": True, "whitespace_pattern": r"[ \t]{0,2}|\r?\n[ \t]{0,40}"}


_TAGGED_VALUES = {  # by their types; some models write Python's names
    "integer": r"\s?-?[0-9]{1,20}",
    "number": r"\s?-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
    "boolean": r"\s?([Tt]rue|[Ff]alse)",
}


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that may be called, and the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, object]
    is_strict: bool = False


class CallGrammar(Struct, frozen=True, kw_only=True):
    """What calls have to be, and the text after which they have to be that; empty: from the beginning."""

    text: str
    opens_with: str


def optional_calls(
    form: AnswerFormat, tools: Sequence[Tool], special: Mapping[str, int]
) -> CallGrammar | None:
    """The grammar of calls after their marker; None: of this format, calls are not limited.

    Args:
        form: of the model's answers.
        tools: that may be called.
        special: the numbers of special tokens, by their texts.
    """
    marker = form.calls.marker
    writer = _Writer(form.calls, tools, special)
    if not marker or not writer.can_limit:
        return None
    return CallGrammar(text=writer.grammar(writer.calls_after(marker)), opens_with=marker)


def required_calls(
    form: AnswerFormat,
    tools: Sequence[Tool],
    special: Mapping[str, int],
    *,
    is_reasoning: bool,
    answer: Mapping[str, object] | None = None,
) -> CallGrammar:
    """The grammar of an answer that is a call; reasoning may come first.

    Args:
        form: of the model's answers.
        tools: that may be called.
        special: the numbers of special tokens, by their texts.
        is_reasoning: the prompt has begun the reasoning.
        answer: the JSON schema that the answer may follow in place of a call; None: it is a call.
    """
    writer = _Writer(form.calls, tools, special)
    start = writer.calls_after("") if writer.can_limit else writer.any_call()
    if answer is not None:
        start = f"({start} | {writer.json(answer)})"
    reasoning = form.reasoning
    if reasoning is None or form.calls.kind == "harmony":  # whose calls begin with it
        return CallGrammar(text=writer.grammar(start), opens_with="")
    if is_reasoning:
        return CallGrammar(text=writer.grammar(f"ws {start}"), opens_with=reasoning.closes)
    opens, closes = writer.spell(reasoning.opens), writer.text_before(reasoning.closes)
    return CallGrammar(text=writer.grammar(f"({opens} {closes} ws)? {start}"), opens_with="")


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(self, form: CallFormat, tools: Sequence[Tool], special: Mapping[str, int]) -> None:
        self._form, self._tools = form, tools
        texts = sorted((text for text in special if text), key=len, reverse=True)
        self._special = special
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._rules: list[str] = []

    @property
    def can_limit(self) -> bool:
        """Whether the arguments of this format can be limited."""
        form = self._form
        if form.kind == "tagged":
            return not self._specials_in(form.argument_closes)
        return form.kind in ("json", "named")

    def grammar(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", _SPACE, *self._rules])

    def spell(self, literal: str) -> str:
        """A literal: texts and special tokens; any white space where it has some."""
        found: list[str] = []
        for number, part in enumerate(literal.split(ANY)):
            if number:
                found.append(r"/[^<>\[\]{}\"\n]{0,64}/")
            at = 0
            for start, end, name in [*self._specials_in(part), (len(part), len(part), "")]:
                found += _words(part[at:start])
                if name:
                    found.append(f"<[{self._special[name]}]>")
                at = end
        return " ".join(found)

    def json(self, schema: Mapping[str, object], *, is_strict: bool = False) -> str:
        """A value by a JSON schema."""
        guidance = {} if is_strict else _LENIENT
        return self._rule(f"%json {json.dumps({**closed(schema), 'x-guidance': guidance})}")

    def text_before(self, literal: str) -> str:
        """Any text, and then a literal."""
        specials = self._specials_in(literal)
        if specials and specials[0][0] == 0:
            return rf"/(?s:.*)/ {self.spell(literal)}"
        return self._rule("/(?s:.*)/", f"[suffix={json.dumps(literal)}]")

    def calls_after(self, marker: str) -> str:
        """Calls of which the marker was written."""
        form = self._form
        one = self._one_of([self._call(tool) for tool in self._tools])
        if not form.section_opens:
            call = f"ws {one} ws {self.spell(form.closes)}"
            if marker:
                return f"{self._after(form.opens, marker)} {call}"
            return f"{self.spell(form.opens)} {call} (ws {self.spell(form.opens)} {call})*"
        opens = self.spell(form.section_opens)
        if marker:
            opens = self._after(form.section_opens, marker)
        call = f"{self.spell(form.opens)} ws {one} ws {self.spell(form.closes)}"
        if form.is_list:
            calls = f'ws "[" ws {call} ws ("," ws {call} ws)* "]" ws'
        else:
            calls = f"ws {call} (ws {call})* ws"
        return f"{opens} {calls} {self.spell(form.section_closes)}"

    def any_call(self) -> str:
        """A call of one of the tools, whose arguments are not limited."""
        form = self._form
        names = self._one_of([json.dumps(tool.name) for tool in self._tools])
        match form.kind:
            case "python":
                return f'{self.spell(form.section_opens)} "[" {names} "(" /(?s:.*)/'
            case "harmony":
                called = f'"commentary to=functions." {names} /[^<>]{{0,16}}/'
                analysis = (
                    f'{self.spell("<|channel|>")} "analysis" {self.spell("<|message|>")}'
                    f" {self.text_before('<|end|>')}"
                    f' {self.spell("<|start|>")} "assistant"'
                )
                opens = f"({analysis})? {self.spell('<|channel|>')} {called}"
                json_mark = f'({self.spell("<|constrain|>")} "json")?'
                return f"{opens} {json_mark} {self.spell('<|message|>')} /(?s:.*)/"
            case _:
                return f'{self.spell(form.opens)} {names} "{{" (/(?s:.+)/ | <[*]>)*'

    def _call(self, tool: Tool) -> str:
        """The rule of a call, without what is around it."""
        form, name = self._form, json.dumps(tool.name)
        if form.kind == "tagged":
            return self._rule(f"{name} {self.spell(form.after_name)} ws {self._arguments(tool)} ws")
        arguments = self.json(tool.schema, is_strict=tool.is_strict)
        if form.kind == "named":
            return self._rule(f"{name} {self.spell(form.after_name)} ws {arguments} ws")
        quoted = json.dumps(name)
        if not form.name_key:
            members = f'{quoted} ws ":" ws {arguments}'
        else:
            members = (
                f'{_key(form.name_key)} {quoted} ws "," ws {_key(form.arguments_key)} {arguments}'
            )
        if form.id_key:
            an_id = f'{_key(form.id_key)} /"[0-9A-Za-z_-]{{1,40}}"/'
            is_first = form.id_is_first
            members = (
                f'({an_id} ws "," ws)? {members}' if is_first else f'{members} (ws "," ws {an_id})?'
            )
        inner = f'"{{" ws {members} ws "}}"'
        if form.wrapper_key:
            inner = f'"{{" ws ({_key("type")} "\\"function\\"" ws "," ws)? {_key(form.wrapper_key)} {inner} ws "}}"'
        return self._rule(inner)

    def _arguments(self, tool: Tool) -> str:
        """Arguments in tags, in any order. Which of them are required is left to the model."""
        form = self._form
        properties = tool.schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return ""
        found: list[str] = []
        for key, schema in cast("dict[str, object]", properties).items():
            opens = self.spell(form.argument_opens)
            equals = form.argument_equals
            closes = form.argument_closes.replace(KEY, key)
            found.append(
                self._rule(
                    f"{opens} {json.dumps(key)} {self.spell(equals)} {self._value(schema, closes)}"
                )
            )
        return f"(({' | '.join(found)}) ws)*"

    def _value(self, schema: object, closes: str) -> str:
        kind = cast("dict[str, object]", schema).get("type") if isinstance(schema, dict) else None
        if isinstance(kind, str) and kind in _TAGGED_VALUES:
            return f"/{_TAGGED_VALUES[kind]}/ ws {self.spell(closes)}"
        return self._rule("/(?s:.*)/", f"[suffix={json.dumps(closes.strip())}]")

    def _after(self, literal: str, marker: str) -> str:
        """What comes of a literal after the marker that it begins with."""
        return self.spell(literal.strip().removeprefix(marker))

    def _one_of(self, names: Sequence[str]) -> str:
        return f"({' | '.join(names)})"

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _specials_in(self, text: str) -> list[tuple[int, int, str]]:
        if self._pattern is None:
            return []
        return [(found.start(), found.end(), found[0]) for found in self._pattern.finditer(text)]


def _key(name: str) -> str:
    """A key of a JSON object, and its colon."""
    return f'{json.dumps(json.dumps(name))} ws ":" ws'


def _words(text: str) -> list[str]:
    """A text, with any white space where it has some."""
    parts = re.split(r"(\s+)", text)
    return ["ws" if part.isspace() else json.dumps(part) for part in parts if part]
