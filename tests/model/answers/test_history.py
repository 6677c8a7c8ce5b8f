"""A conversation with tools is given to a template in the form that it reads."""

import json

from call_templates import HARMONY, SILENT, TEMPLATES, Rendering

from potluck.model.answers.history import CALL_ID_LENGTH, call_id, for_template

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {
    "id": "call_12345",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_12345", "content": "2"},
]


def test_arguments_become_objects_and_results_get_the_name_of_their_tool() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form

    messages, tools = for_template(form, TALK, TOOLS)

    assert messages[2]["tool_calls"] == [
        {"id": "call_12345", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]
    assert messages[3] == {**TALK[3], "name": "add"}
    assert tools == TOOLS


def test_ids_are_made_as_short_as_the_template_wants_and_stay_pairs() -> None:
    form = Rendering(TEMPLATES["name and arguments"]).form

    messages, _ = for_template(form, TALK, TOOLS)

    (call,) = messages[2]["tool_calls"]  # type: ignore[misc]
    assert call["id"] == messages[3]["tool_call_id"] == call_id("call_12345")
    assert len(call["id"]) == CALL_ID_LENGTH


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    form = Rendering(TEMPLATES["object in tags"]).form
    for text in ("[1]", "{", "[" * 100_000):
        call = {**CALL, "function": {"name": "add", "arguments": text}}

        messages, _ = for_template(form, [{**TALK[2], "tool_calls": [call]}], None)

        (given,) = messages[0]["tool_calls"]  # type: ignore[misc]
        assert given["function"]["arguments"] == text


def test_a_template_without_tools_gets_them_in_the_system_message_and_calls_as_text() -> None:
    form = Rendering(SILENT).form

    messages, tools = for_template(form, TALK, TOOLS)

    assert tools is None
    offer = str(messages[0]["content"])
    assert offer.startswith("Be brief.")
    assert json.dumps(TOOLS[0]["function"]) in offer
    assert "<tool_call>" in offer
    assert messages[2] == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    }
    assert messages[3]["role"] == "user"
    assert "2" in str(messages[3]["content"])


def test_tools_are_offered_before_the_first_message_where_none_is_the_systems() -> None:
    messages, _ = for_template(Rendering(SILENT).form, TALK[1:2], TOOLS)

    assert [message["role"] for message in messages] == ["system", "user"]


def test_a_template_that_shows_calls_and_offers_no_tools_is_told_of_them_in_its_own_format() -> (
    None
):
    form = Rendering(TEMPLATES["fenced"]).form

    messages, tools = for_template(form, TALK, TOOLS)

    assert tools is None
    assert "<bs><b>function<s>NAME\n```json\n" in str(messages[0]["content"])
    assert messages[2]["tool_calls"]


def test_reasoning_goes_into_the_field_that_the_template_reads() -> None:
    thoughts = [{"role": "assistant", "content": "2", "reasoning_content": "Hm."}]
    source = TEMPLATES["object in tags"].replace("m.reasoning_content", "m.thinking")

    messages, _ = for_template(Rendering(source).form, thoughts, None)

    assert messages == [{"role": "assistant", "content": "2", "thinking": "Hm."}]
    assert for_template(Rendering(SILENT).form, thoughts, None)[0] == [
        {"role": "assistant", "content": "2"}
    ]


def test_a_text_beside_a_call_joins_the_reasoning_where_the_template_takes_one_of_both() -> None:
    rendering = Rendering(HARMONY)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]

    given, _ = for_template(rendering.form, messages, None)

    text = rendering.render(given, None, True)
    assert "<|channel|>analysis<|message|>Hm.\n\nLet me see.<|end|>" in text
    assert 'to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>' in text
    assert '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"2"<|end|>' in text


def test_the_effort_of_reasoning_reaches_the_template() -> None:
    template = Rendering(HARMONY).template
    messages = [{"role": "user", "content": "Go."}]
    fields = {"messages": messages, "tools": None, "add_generation_prompt": True}

    assert "Reasoning: medium" in template.render(fields)
    assert "Reasoning: high" in template.render({**fields, "reasoning_effort": "high"})


def test_the_id_of_a_call_is_the_same_for_the_same_answer() -> None:
    assert call_id("request", 1) == call_id("request", 1) != call_id("request", 2)
