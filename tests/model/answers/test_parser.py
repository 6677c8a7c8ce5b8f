"""The raw text of an answer is split into text, reasoning and calls, wherever it is cut into pieces."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from call_templates import HARMONY, SILENT, TEMPLATES, Rendering

from potluck.model.answers.events import CallArguments, CallBegins, Part, Text, Thought
from potluck.model.answers.format import AnswerFormat
from potluck.model.answers.parser import AnswerParser

SCHEMAS: Mapping[str, Mapping[str, object]] = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "tags": {"type": "array"},
            "flag": {"type": "boolean"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
ARGUMENTS: Mapping[str, object] = {
    "path": "src/é 日本.py",
    "text": 'def f(x):\n    return "<b>" + x  # {}[]\n',
    "count": -3,
    "tags": ["a", "b c"],
    "flag": True,
}


class Answer(NamedTuple):
    text: str
    reasoning: str
    calls: list[tuple[str, str]]


def joined(parts: Sequence[Part]) -> Answer:
    text, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case Text(more):
                text += more
            case Thought(more):
                reasoning += more
            case CallBegins(name):
                calls.append((name, ""))
            case CallArguments(more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
    return Answer(text, reasoning, calls)


def parsed(
    form: AnswerFormat,
    raw: str,
    sizes: Sequence[int] = (1 << 20,),
    *,
    schemas: Mapping[str, Mapping[str, object]] | None = SCHEMAS,
    is_reasoning: bool = False,
) -> Answer:
    """What an answer is, in pieces of these sizes, one after the other and again."""
    parser = AnswerParser(form, schemas, is_reasoning=is_reasoning)
    parts: list[Part] = []
    at, turn = 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        parts += parser.push(raw[at : at + size])
        at, turn = at + size, turn + 1
    return joined([*parts, *parser.end()])


def in_pieces_of_every_size(form: AnswerFormat, raw: str, *, is_reasoning: bool = False) -> Answer:
    """The one answer that all ways to cut the text give."""
    rng = random.Random(raw)
    ways = [
        [1],
        [2],
        [3],
        [7],
        [1 << 20],
        *([rng.randint(1, 9) for _ in range(9)] for _ in range(4)),
    ]
    answers = [parsed(form, raw, sizes, is_reasoning=is_reasoning) for sizes in ways]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def objects(answer: Answer) -> list[tuple[str, object]]:
    return [(name, json.loads(text)) for name, text in answer.calls]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("calls", [1, 2])
def test_calls_that_a_template_renders_are_parsed_back(name: str, calls: int) -> None:
    rendering = Rendering(TEMPLATES[name])
    made: list[tuple[str, Mapping[str, object]]] = [("write", ARGUMENTS), ("now", {})][:calls]
    if name == "the whole answer":
        made = made[:1]
    if name == "python":  # this template does not escape quotes
        made = [("write", {**ARGUMENTS, "text": "one\ntwo"}), *made[1:]]

    answer = in_pieces_of_every_size(rendering.form, rendering.answer(made))

    assert objects(answer) == [(tool, dict(arguments)) for tool, arguments in made]
    assert (answer.text, answer.reasoning) == ("", "")


@pytest.mark.parametrize("name", ["object in tags", "parameters"])
def test_reasoning_and_text_come_before_calls_without_the_space_around_them(name: str) -> None:
    rendering = Rendering(TEMPLATES[name])
    raw = rendering.answer([("now", {})], content="Let me see.\n", reasoning_content="Hm, <tool.")

    answer = in_pieces_of_every_size(rendering.form, raw)

    assert answer == Answer("Let me see.", "Hm, <tool.", [("now", "{}")])


def test_reasoning_that_the_prompt_has_begun_ends_with_its_tag() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form

    answer = in_pieces_of_every_size(form, "\nHm.\n</think>\n\nYes. ", is_reasoning=True)

    assert answer == Answer("Yes. ", "Hm.", [])


def test_reasoning_that_never_ends_is_reasoning() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form

    assert in_pieces_of_every_size(form, "<think>\nHm, </thi") == Answer("", "Hm, </thi", [])


def test_tags_of_reasoning_inside_of_text_are_text() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = "Models write <think> and then </think>."

    assert in_pieces_of_every_size(form, raw) == Answer(raw, "", [])


def test_calls_are_text_where_no_tools_are_offered() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'

    assert parsed(form, raw, schemas=None) == Answer(raw, "", [])


def test_an_answer_without_anything_special_is_its_text() -> None:
    form = Rendering(SILENT).form
    raw = "  a < b, [x] and {y}\n\n"

    assert in_pieces_of_every_size(form, raw) == Answer(raw, "", [])


@pytest.mark.parametrize(
    "raw",
    [
        "<tool_call>\nI would call it.",
        "<tool_call>\n{'name': 'now'}",
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "now"',
        "<tool_call>" * 3,
        "<tool_cal",
    ],
)
def test_what_begins_as_a_call_and_is_none_becomes_text(raw: str) -> None:
    answer = in_pieces_of_every_size(Rendering(TEMPLATES["object in tags"]).form, raw)

    assert answer.calls in ([], [("now", "")])
    assert answer.text.startswith("<tool_cal") or answer.calls


def test_text_that_is_no_call_streams_where_a_call_is_the_whole_answer() -> None:
    form = Rendering(TEMPLATES["the whole answer"]).form

    assert in_pieces_of_every_size(form, "It is late.") == Answer("It is late.", "", [])
    assert in_pieces_of_every_size(form, '{"a": 1} is JSON') == Answer('{"a": 1} is JSON', "", [])


def test_keys_of_a_call_come_in_any_order_and_others_are_skipped() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = (
        '<tool_call>{"id": [1, {"x": "}"}], "arguments": {"count": 1}, "name": "write"}</tool_call>'
    )

    assert in_pieces_of_every_size(form, raw) == Answer("", "", [("write", '{"count": 1}')])


def test_arguments_that_are_a_text_of_json_are_read() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = r'<tool_call>{"name": "write", "arguments": "{\"count\": 1}"}</tool_call>'

    assert parsed(form, raw).calls == [("write", '{"count": 1}')]


def test_the_arguments_of_a_call_that_is_cut_off_are_there_as_far_as_they_came() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = '<tool_call>{"name": "write", "arguments": {"text": "abc'

    assert in_pieces_of_every_size(form, raw).calls == [("write", '{"text": "abc')]


def test_a_long_argument_streams() -> None:
    for name in ("object in tags", "parameters", "name and arguments"):
        rendering = Rendering(TEMPLATES[name])
        raw = rendering.answer([("write", {"text": "word " * 50})])
        parser = AnswerParser(rendering.form, SCHEMAS)

        pieces = [part for char in raw for part in parser.push(char)]

        assert sum(isinstance(part, CallArguments) for part in pieces) > 100, name


def test_values_in_tags_have_the_types_of_the_schema() -> None:
    form = Rendering(TEMPLATES["parameters"]).form
    raw = (
        "<tool_call>\n<function=write>\n<parameter=path>\n42\n</parameter>\n"
        "<parameter=count>\n42\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n"
        "<parameter=tags>\n['a', None]\n</parameter>\n<parameter=other>\n007\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    assert objects(in_pieces_of_every_size(form, raw)) == [
        ("write", {"path": "42", "count": 42, "flag": True, "tags": ["a", None], "other": "007"})
    ]


def test_text_in_tags_keeps_all_its_lines_but_those_of_the_format() -> None:
    form = Rendering(TEMPLATES["parameters"]).form
    raw = (
        "<tool_call>\n<function=write>\n<parameter=text>\n\n  a\n\n\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    assert objects(in_pieces_of_every_size(form, raw)) == [("write", {"text": "\n  a\n\n"})]


def test_text_in_a_section_of_characters_is_without_its_marks() -> None:
    form = Rendering(TEMPLATES["invocations"]).form
    raw = (
        '<m:tool_call>\n<invoke name="write">\n<parameter name="text"><![CDATA[</parameter>]]>'
        "</parameter>\n</invoke>\n</m:tool_call>"
    )

    assert objects(in_pieces_of_every_size(form, raw)) == [("write", {"text": "</parameter>"})]


def test_text_goes_on_after_a_call() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    raw = 'a<tool_call>{"name": "now", "arguments": {}}</tool_call>\nb'

    assert in_pieces_of_every_size(form, raw) == Answer("a\nb", "", [("now", "{}")])


def test_what_is_outside_of_the_tags_of_the_answer_belongs_to_the_format() -> None:
    form = Rendering(TEMPLATES["numbered objects"]).form
    raw = "<|START_RESPONSE|>Hello.<|END_RESPONSE|> and more"

    assert in_pieces_of_every_size(form, raw) == Answer("Hello.", "", [])


def test_channels_are_reasoning_text_and_calls() -> None:
    form = Rendering(HARMONY).form
    raw = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.write "
        '<|constrain|>json<|message|>{"count": 1}'
    )

    assert in_pieces_of_every_size(form, raw) == Answer(
        "Let me see.", "Hm.", [("write", '{"count": 1}')]
    )


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.write<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.write<|message|>",
        "<|channel|>commentary to=functions.write <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.write code<|message|>",
    ],
)
@pytest.mark.parametrize("is_reasoning_first", [True, False])
def test_a_call_may_name_its_function_before_or_after_its_channel(
    header: str, is_reasoning_first: bool
) -> None:
    thought = "<|channel|>analysis<|message|>I call it.<|end|><|start|>assistant"
    raw = (thought if is_reasoning_first else "") + header + '{"count": 1}<|call|>'

    answer = in_pieces_of_every_size(Rendering(HARMONY).form, raw)

    reasoning = "I call it." if is_reasoning_first else ""
    assert answer == Answer("", reasoning, [("write", '{"count": 1}')])


def test_the_final_channel_is_the_answer() -> None:
    raw = (
        "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Four.<|return|>"
    )

    assert in_pieces_of_every_size(Rendering(HARMONY).form, raw) == Answer(
        "Four.", "Two and two.", []
    )


def test_an_answer_without_channels_is_text() -> None:
    assert in_pieces_of_every_size(Rendering(HARMONY).form, "Yes.") == Answer("Yes.", "", [])


def test_an_answer_that_goes_on_is_text_at_once_and_may_have_more_messages() -> None:
    parser = AnswerParser(Rendering(HARMONY).form, None, goes_on=True)

    first = [part for text in (" three,", " four.") for part in parser.push(text)]
    rest = [
        *parser.push("<|end|><|start|>assistant<|channel|>final<|message|>Five."),
        *parser.end(),
    ]

    assert joined(first) == Answer(" three, four.", "", [])
    assert joined(rest) == Answer("Five.", "", [])


@pytest.mark.parametrize("name", [*TEMPLATES, "harmony"])
def test_no_text_breaks_a_parser_or_takes_long(name: str) -> None:
    rendering = Rendering(TEMPLATES.get(name, HARMONY))
    raw = rendering.answer([("write", ARGUMENTS)]) if name != "harmony" else HARMONY
    rng = random.Random(name)

    for _ in range(60):
        cut, other = sorted(rng.randrange(len(raw)) for _ in range(2))
        broken = raw[:cut] + raw[other:] + raw[cut:other][::-1]
        in_pieces_of_every_size(rendering.form, broken)
    parsed(rendering.form, "<" * 20_000, (1, 5))
