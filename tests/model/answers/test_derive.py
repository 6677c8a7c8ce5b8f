"""The format of calls and of reasoning is found in what a template writes."""

import pytest
from call_templates import HARMONY, SILENT, TEMPLATES, Rendering

from potluck.model.answers.format import PLAIN_CALLS, CallFormat, Reasoning

FORMATS = {
    "object in tags": CallFormat(kind="json", opens="<tool_call>", closes="</tool_call>"),
    "list in tags": CallFormat(
        kind="json", section_opens="<calls>", section_closes="</calls>", is_list=True
    ),
    "list after a mark": CallFormat(
        kind="json", section_opens="[TOOL_CALLS]", is_list=True, id_key="id"
    ),
    "numbered objects": CallFormat(
        kind="json",
        section_opens="<|START_ACTION|>",
        section_closes="<|END_ACTION|>",
        is_list=True,
        name_key="tool_name",
        arguments_key="parameters",
        id_key="tool_call_id",
        id_is_first=True,
    ),
    "lines": CallFormat(kind="json", section_opens="<calls>", section_closes="</calls>"),
    "name as key": CallFormat(
        kind="json",
        section_opens="<|p|>",
        section_closes="<|s|>",
        is_list=True,
        name_key="",
        arguments_key="",
    ),
    "the whole answer": CallFormat(kind="json", arguments_key="parameters"),
    "name and arguments": CallFormat(
        kind="named", opens="[TOOL_CALLS]", after_name="[CALL_ID]\0[ARGS]"
    ),
    "section of names": CallFormat(
        kind="named",
        section_opens="<|calls|>",
        section_closes="<|/calls|>",
        opens="<|call|>functions.",
        closes="<|/call|>",
        after_name=":\0<|arg|>",
    ),
    "fenced": CallFormat(
        kind="named",
        section_opens="<bs>",
        section_closes="<es>",
        opens="<b>function<s>",
        closes="```<e>",
        after_name="\n```json\n",
    ),
    "parameters": CallFormat(
        kind="tagged",
        opens="<tool_call>\n<function=",
        closes="</function>\n</tool_call>",
        after_name=">\n",
        argument_opens="<parameter=",
        argument_equals=">\n",
        argument_closes="\n</parameter>\n",
    ),
    "keys and values": CallFormat(
        kind="tagged",
        opens="<tool_call>",
        closes="</tool_call>",
        after_name="\n",
        argument_opens="<arg_key>",
        argument_equals="</arg_key>\n<arg_value>",
        argument_closes="</arg_value>\n",
    ),
    "invocations": CallFormat(
        kind="tagged",
        section_opens="<m:tool_call>",
        section_closes="</m:tool_call>",
        opens='<invoke name="',
        closes="</invoke>",
        after_name='">\n',
        argument_opens='<parameter name="',
        argument_equals='">',
        argument_closes="</parameter>\n",
    ),
    "typed": CallFormat(
        kind="tagged",
        section_opens="<x:calls>",
        section_closes="</x:calls>",
        opens='<x:invoke name="',
        closes="</x:invoke>",
        after_name='">\n',
        argument_opens='<x:parameter name="',
        argument_equals='" string="\0">',
        argument_closes="</x:parameter>\n",
        string_mark="true",
    ),
    "python": CallFormat(
        kind="python",
        section_opens="<|tool_call_start|>",
        section_closes="<|tool_call_end|>",
        is_list=True,
    ),
    "gemma": CallFormat(kind="gemma", opens="<|tool_call>call:", closes="<tool_call|>"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_texts_around_calls_are_those_that_the_template_writes(name: str) -> None:
    form = Rendering(TEMPLATES[name]).form

    assert form.calls == FORMATS[name]
    assert form.shows_calls
    assert form.offers_tools == (name != "fenced")


def test_a_template_that_knows_no_tools_gets_the_plain_format() -> None:
    form = Rendering(SILENT).form

    assert (form.calls, form.offers_tools, form.shows_calls) == (PLAIN_CALLS, False, False)


def test_a_template_that_offers_tools_and_shows_no_calls_names_the_format_in_words() -> None:
    form = Rendering(
        "{% if tools %}Call them in <|tool_call_start|>: {{ tools | tojson }}{% endif %}" + SILENT
    ).form

    assert form.calls.kind == "python"
    assert (form.offers_tools, form.shows_calls) == (True, False)


def test_channels_are_the_harmony_format() -> None:
    form = Rendering(HARMONY).form

    assert form.calls.kind == "harmony"
    assert form.splits_text


def test_only_the_ids_are_accepted_that_the_template_accepts() -> None:
    lengths = {name: Rendering(source).form.history.id_length for name, source in TEMPLATES.items()}

    assert {name for name, length in lengths.items() if length} == {"name and arguments"}
    assert lengths["name and arguments"] == 9


@pytest.mark.parametrize(
    ("condition", "content"),
    [("m.content is none", None), ("m.content is not defined", "\0absent")],
)
def test_a_message_that_only_calls_has_the_content_that_the_template_wants(
    condition: str, content: str | None
) -> None:
    source = TEMPLATES["object in tags"].replace("{% if m.tool_calls %}", f"{{% if {condition} %}}")

    assert Rendering(source).form.history.content == content


def test_arguments_are_text_where_the_template_joins_texts() -> None:
    source = TEMPLATES["object in tags"].replace(
        "{{ f.arguments | tojson }}", "{{ '' + f.arguments }}"
    )

    assert Rendering(source).form.history.arguments_as_text


def test_reasoning_is_what_stands_around_it_and_its_field_is_known() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form

    assert form.reasoning == Reasoning(
        opens="<think>", closes="</think>", field="reasoning_content"
    )


def test_tags_of_reasoning_that_nobody_has_seen_are_found() -> None:
    source = TEMPLATES["object in tags"].replace("think>", "mm:thinking>")

    form = Rendering(source).form

    assert form.reasoning is not None
    assert (form.reasoning.opens, form.reasoning.closes) == ("<mm:thinking>", "</mm:thinking>")


def test_reasoning_that_the_template_drops_is_known_by_its_source() -> None:
    form = Rendering("{# after </think> #}" + SILENT).form

    assert form.reasoning == Reasoning(opens="<think>", closes="</think>")


def test_tags_around_the_answer_proper_are_found() -> None:
    form = Rendering(TEMPLATES["numbered objects"]).form

    assert (form.content_opens, form.content_closes) == ("<|START_RESPONSE|>", "<|END_RESPONSE|>")


def test_a_template_that_fails_has_a_format_all_the_same() -> None:
    assert Rendering("{{ raise_exception('no') }}").form.calls == PLAIN_CALLS
