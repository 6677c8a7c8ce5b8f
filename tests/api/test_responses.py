"""`/v1/responses`, as OpenAI's own client sends and reads it."""

import json
from typing import Any

import openai
import pytest
from fake_backend import Server
from pydantic import BaseModel

from potluck.api.events import CallPiece, Piece, Reading
from potluck.api.prompts import ChatPrompt, ChatTurn, Constraint, ToolCall, ToolUse
from potluck.api.responses.shapes import ModelResponse
from potluck.api.responses.stored import Stored, StoredResponses
from potluck.errors import NotReadyError, PeerLostError

pytestmark = pytest.mark.net

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
PIECES = [
    Piece(text="", reasoning="Hm", token_ids=(5,)),
    Piece(text="", reasoning=".", token_ids=(6,)),
    Piece(text="Let me ", token_ids=(7,)),
    Piece(text="see.", token_ids=(7,)),
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


def prompt_of(server: Server) -> ChatPrompt:
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def test_a_text_is_answered(server: Server, ai: openai.OpenAI) -> None:
    response = ai.responses.create(
        model="guide",
        input="Hello",
        instructions="Be brief.",
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
        metadata={"a": "b"},
    )

    assert response.output_text == "Hello, world."
    assert (response.status, response.model, response.error) == ("completed", "guide", None)
    assert response.metadata == {"a": "b"}
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 4, 7)
    assert usage.input_tokens_details.cached_tokens == 1
    request = server.backend.generated[-1]
    assert (request.max_tokens, request.sampling.temperature) == (50, 0.5)
    assert prompt_of(server).turns == (
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="Hello"),
    )


def test_an_answer_that_is_too_long_is_incomplete(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="guide", input="Hello", max_output_tokens=2)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_items_are_turns_and_those_of_one_answer_are_one(server: Server, ai: openai.OpenAI) -> None:
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see."}],
        },
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "2",
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]

    ai.responses.create(model="guide", input=items)

    assert prompt_of(server).turns == (
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="1 + 1?"),
        ChatTurn(
            role="assistant",
            content="Let me see.",
            reasoning="Hm.",
            calls=(
                ToolCall(id="1", name="add", arguments='{"a": 1}'),
                ToolCall(id="2", name="now", arguments="{}"),
            ),
        ),
        ChatTurn(role="tool", content="2", call_id="1"),
        ChatTurn(role="tool", content="noon", call_id="2"),
    )


def test_tools_the_choice_and_the_effort_reach_the_model(server: Server, ai: openai.OpenAI) -> None:
    ai.responses.create(
        model="guide",
        input="Hello",
        tools=[ADD, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        reasoning={"effort": "high"},
    )

    prompt = prompt_of(server)
    assert isinstance(prompt.tool_use, ToolUse)
    assert (prompt.tool_use.choice, prompt.tool_use.name) == ("named", "add")
    assert not prompt.tool_use.is_parallel
    (tool,) = prompt.tool_use.tools  # what OpenAI's servers would search is not offered
    assert json.loads(tool.parameters) == ADD["parameters"]
    assert json.loads(prompt.variables) == {"reasoning_effort": "high"}


def test_tools_in_groups_have_the_name_of_the_group_before_theirs(
    server: Server, ai: openai.OpenAI
) -> None:
    group: Any = {"type": "namespace", "name": "math", "description": "Sums.", "tools": [ADD]}
    called = CallPiece(index=0, id="abc123xyz", name="math__add", arguments="{}")
    server.backend.pieces = [Piece(text="", token_ids=(8,), calls=(called,))]
    call = {"type": "function_call", "call_id": "1", "name": "add", "namespace": "math"}

    response: Any = ai.responses.create(
        model="guide",
        input=[{"role": "user", "content": "1 + 1?"}, {**call, "arguments": "{}"}],  # type: ignore[list-item]
        tools=[group],
    )

    prompt = prompt_of(server)
    assert prompt.tool_use is not None
    assert [tool.name for tool in prompt.tool_use.tools] == ["math__add"]
    assert prompt.turns[1].calls[0].name == "math__add"
    assert (response.output[0].namespace, response.output[0].name) == ("math", "add")


def test_an_answer_may_have_to_follow_a_schema(server: Server, ai: openai.OpenAI) -> None:
    class Sum(BaseModel):
        value: int

    server.backend.script = ('{"value": 2}',)

    response = ai.responses.parse(model="guide", input="1 + 1?", text_format=Sum)

    assert response.output_parsed == Sum(value=2)
    constraint = server.backend.generated[-1].constraint
    assert isinstance(constraint, Constraint)
    assert (constraint.kind, constraint.field) == ("json_schema", "text.format")


def test_a_whole_response_has_reasoning_a_message_and_calls(
    server: Server, ai: openai.OpenAI
) -> None:
    server.backend.pieces = PIECES

    response: Any = ai.responses.create(model="guide", input="1 + 1?", tools=[ADD])

    reasoning, message, add, now = response.output
    assert reasoning.content[0].text == "Hm."
    assert (message.type, message.content[0].text, message.status) == (
        "message",
        "Let me see.",
        "completed",
    )
    assert (add.call_id, add.name, add.arguments) == ("abc123xyz", "add", '{"a": 1}')
    assert (now.name, now.arguments) == ("now", "{}")
    assert response.usage.output_tokens_details.reasoning_tokens == 2


def test_a_stream_has_the_same_and_its_events_are_numbered(
    server: Server, ai: openai.OpenAI
) -> None:
    server.backend.pieces = PIECES
    server.backend.waits = (Reading(tokens=1, total=3),)

    with ai.responses.stream(model="guide", input="1 + 1?", tools=[ADD]) as stream:
        events: list[Any] = list(stream)
        final: Any = stream.get_final_response()

    assert [item.type for item in final.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert final.output_text == "Let me see."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert deltas == '{"a": 1}{}'
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")


def test_a_response_goes_on_from_an_earlier_one(server: Server, ai: openai.OpenAI) -> None:
    server.backend.pieces = PIECES[2:5]
    first = ai.responses.create(model="guide", input="1 + 1?", instructions="Be brief.")
    server.backend.pieces = []

    result: Any = [{"type": "function_call_output", "call_id": "abc123xyz", "output": "2"}]
    ai.responses.create(model="guide", input=result, previous_response_id=first.id)

    assert prompt_of(server).turns == (  # the instructions were of the first request alone
        ChatTurn(role="user", content="1 + 1?"),
        ChatTurn(
            role="assistant",
            content="Let me see.",
            calls=(ToolCall(id="abc123xyz", name="add", arguments=""),),
        ),
        ChatTurn(role="tool", content="2", call_id="abc123xyz"),
    )
    assert ai.responses.retrieve(first.id).output_text == first.output_text


def test_what_is_not_stored_or_was_deleted_is_not_found(ai: openai.OpenAI) -> None:
    stored = ai.responses.create(model="guide", input="Hello")
    ai.responses.delete(stored.id)
    unstored = ai.responses.create(model="guide", input="Hello", store=False)

    for gone in (stored.id, unstored.id, "resp_unknown"):
        with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
            ai.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError) as refused:
            ai.responses.create(model="guide", input="x", previous_response_id=gone)
        assert refused.value.param == "previous_response_id"


def test_the_oldest_responses_are_forgotten_first() -> None:
    stored = StoredResponses(most=2, most_characters=10)

    def add(id_: str, text: str) -> None:
        response = ModelResponse(id=id_, created_at=0, model="m", status="completed")
        stored.add(Stored(response, (ChatTurn(role="user", content=text),)))

    def kept() -> set[str]:
        return set(stored._stored)

    add("a", "1")
    add("b", "22")
    add("c", "333")
    assert kept() == {"b", "c"}
    add("d", "666666")
    assert kept() == {"c", "d"}
    add("e", "x" * 11)
    assert kept() == set()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
    ids=str,
)
def test_what_is_not_offered_is_named(
    ai: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ai.responses.create(**{"model": "guide", "input": "Hello", **fields})

    assert refused.value.param == param


def test_an_error_before_the_answer_has_a_status(server: Server, ai: openai.OpenAI) -> None:
    server.backend.fails_before = NotReadyError("It is being loaded.")

    with pytest.raises(openai.InternalServerError):
        ai.responses.create(model="guide", input="Hello", stream=True)


def test_an_error_in_the_middle_is_the_last_event(server: Server, ai: openai.OpenAI) -> None:
    server.backend.fails_after = PeerLostError("The laptop is gone.")

    events: list[Any] = list(ai.responses.create(model="guide", input="Hello", stream=True))

    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "The laptop is gone."
