"""Tools and reasoning in OpenAI's API, as OpenAI's own client sends and reads them."""

import json
from typing import Any

import openai
import pytest
from fake_backend import Server

from potluck.api.events import CallPiece, Piece
from potluck.api.prompts import ChatPrompt, ChatTurn, ToolCall, ToolSpec, ToolUse

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "1 + 1?"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD: Any = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": True},
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
PIECES = [
    Piece(text="", reasoning="Hm", token_ids=(5,)),
    Piece(text="", reasoning=".", token_ids=(6,)),
    Piece(text="Let me see.", token_ids=(7,)),
    Piece(text="", token_ids=(8,), calls=(CallPiece(index=0, id="abc123xyz", name="add"),)),
    Piece(text="", token_ids=(9,), calls=(CallPiece(index=0, arguments='{"a": '),)),
    Piece(
        text="",
        token_ids=(10,),
        calls=(
            CallPiece(index=0, arguments="1}"),
            CallPiece(index=1, id="abc123xyw", name="now", arguments="{}"),
        ),
    ),
]


def use_of(server: Server) -> ToolUse:
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tool_use is not None
    return prompt.tool_use


def test_tools_reach_the_model_with_their_schemas(server: Server, ai: openai.OpenAI) -> None:
    ai.chat.completions.create(model="guide", messages=HI, tools=[ADD, NOW])

    use = use_of(server)
    assert (use.choice, use.is_parallel) == ("auto", True)
    add, now = use.tools
    assert json.loads(add.parameters) == PARAMETERS
    assert (add.name, add.description, add.is_strict) == ("add", "Adds.", True)
    assert now == ToolSpec(name="now", parameters='{"type": "object", "properties": {}}')


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", ("auto", "")),
        ("none", ("none", "")),
        ("required", ("required", "")),
        ({"type": "function", "function": {"name": "now"}}, ("named", "now")),
    ],
    ids=str,
)
def test_the_choice_reaches_the_model(
    server: Server, ai: openai.OpenAI, choice: Any, wanted: tuple[str, str]
) -> None:
    ai.chat.completions.create(
        model="guide", messages=HI, tools=[ADD, NOW], tool_choice=choice, parallel_tool_calls=False
    )

    use = use_of(server)
    assert (use.choice, use.name) == wanted
    assert not use.is_parallel


def test_a_tool_that_is_named_is_called_once(server: Server, ai: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "now"}}

    ai.chat.completions.create(model="guide", messages=HI, tools=[ADD, NOW], tool_choice=named)

    assert not use_of(server).is_parallel


def test_a_whole_answer_has_text_reasoning_and_calls(server: Server, ai: openai.OpenAI) -> None:
    server.backend.pieces = PIECES

    (choice,) = ai.chat.completions.create(model="guide", messages=HI, tools=[ADD, NOW]).choices

    message: Any = choice.message
    assert choice.finish_reason == "tool_calls"
    assert (message.content, message.reasoning_content) == ("Let me see.", "Hm.")
    assert [
        (call.id, call.type, call.function.name, call.function.arguments)
        for call in message.tool_calls
    ] == [
        ("abc123xyz", "function", "add", '{"a": 1}'),
        ("abc123xyw", "function", "now", "{}"),
    ]


def test_an_answer_that_only_calls_has_no_content(server: Server, ai: openai.OpenAI) -> None:
    server.backend.pieces = PIECES[3:5]

    (choice,) = ai.chat.completions.create(model="guide", messages=HI, tools=[ADD]).choices

    assert choice.message.content is None


def test_a_stream_has_the_same_in_pieces(server: Server, ai: openai.OpenAI) -> None:
    server.backend.pieces = PIECES
    with ai.chat.completions.stream(model="guide", messages=HI, tools=[NOW]) as stream:
        events = list(stream)
        final: Any = stream.get_final_completion().choices[0]

    assert final.finish_reason == "tool_calls"
    assert final.message.content == "Let me see."
    assert [(c.function.name, c.function.arguments) for c in final.message.tool_calls] == [
        ("add", '{"a": 1}'),
        ("now", "{}"),
    ]
    deltas: list[Any] = [event.chunk.choices[0].delta for event in events if event.type == "chunk"]
    thoughts = [getattr(delta, "reasoning_content", None) for delta in deltas]
    assert "".join(thought for thought in thoughts if thought) == "Hm."
    called = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(call.index, call.id) for call in called] == [
        (0, "abc123xyz"),
        (0, None),
        (0, None),
        (1, "abc123xyw"),
    ]


def test_calls_and_results_of_earlier_turns_reach_the_model(
    server: Server, ai: openai.OpenAI
) -> None:
    call: Any = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages: Any = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]},
    ]

    ai.chat.completions.create(model="guide", messages=messages)

    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.turns[1:] == (
        ChatTurn(
            role="assistant",
            content="",
            reasoning="Hm.",
            calls=(ToolCall(id="1", name="add", arguments="{}"),),
        ),
        ChatTurn(role="tool", content="2", call_id="1"),
    )


def test_arguments_of_a_client_that_sends_an_object_are_taken(
    server: Server, ai: openai.OpenAI
) -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}
    messages: Any = [*HI, {"role": "assistant", "tool_calls": [call]}]

    ai.chat.completions.create(model="guide", messages=messages)

    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.turns[1].calls[0].arguments == '{"a":1}'


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}},
            {"reasoning_effort": "max"},
        ),
        ({}, {}),
    ],
    ids=str,
)
def test_what_the_template_may_read_reaches_it(
    server: Server, ai: openai.OpenAI, fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    ai.chat.completions.create(model="guide", messages=HI, extra_body=fields)

    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert json.loads(prompt.variables) == variables


def test_a_message_can_be_continued(server: Server, ai: openai.OpenAI) -> None:
    messages: Any = [*HI, {"role": "assistant", "content": "It is "}]

    ai.chat.completions.create(
        model="guide", messages=messages, extra_body={"continue_final_message": True}
    )

    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.continues
