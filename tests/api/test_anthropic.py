"""`/v1/messages`, as Anthropic's own client sends and reads it."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from fake_backend import TOKEN, Server

from potluck.api.events import CallPiece, Piece, Reading
from potluck.api.prompts import ChatPrompt, ChatTurn, ToolCall, ToolUse
from potluck.errors import NotReadyError, PeerLostError

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "1 + 1?"}]
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
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


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key=TOKEN, max_retries=0, timeout=30
    ) as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "guide", "max_tokens": 50, "messages": HI} | fields


def prompt_of(server: Server) -> ChatPrompt:
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def test_a_message_is_answered(server: Server, claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(
        **asked(system="Be brief.", stop_sequences=["END"]),
        extra_body={"temperature": 0.5, "top_k": 5, "top_p": 0.9},
    )

    assert [block.text for block in answer.content if block.type == "text"] == ["Hello, world."]
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "guide")
    assert answer.stop_reason == "end_turn"
    assert answer.id.startswith("msg_")
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 1, 4)
    request = server.backend.generated[-1]
    assert (request.max_tokens, request.stop) == (50, ("END",))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 5, 0.9)
    assert prompt_of(server).turns == (
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="1 + 1?"),
    )


def test_an_answer_that_is_too_long_says_so(claude: anthropic.Anthropic) -> None:
    assert claude.messages.create(**asked(max_tokens=2)).stop_reason == "max_tokens"


def test_blocks_are_turns_and_results_come_first(
    server: Server, claude: anthropic.Anthropic
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [{"type": "text", "text": "2"}],
                },
                {"type": "tool_result", "tool_use_id": "2", "content": "no", "is_error": True},
                {"type": "text", "text": "Well?"},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "3"}]},
    ]

    claude.messages.create(
        **asked(messages=messages, system=[{"type": "text", "text": "Be brief."}])
    )

    assert prompt_of(server).turns == (
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="a\nb"),
        ChatTurn(
            role="assistant",
            content="Let me see.",
            reasoning="Hm.",
            calls=(ToolCall(id="1", name="add", arguments='{"a":1}'),),
        ),
        ChatTurn(role="tool", content="2", call_id="1"),
        ChatTurn(role="tool", content="Error: no", call_id="2"),
        ChatTurn(role="user", content="Well?"),
        ChatTurn(role="tool", content="", call_id="3"),
    )


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, ("auto", "", True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", "", False)),
        ({"type": "tool", "name": "add"}, ("named", "add", False)),
        ({"type": "none"}, ("none", "", True)),
    ],
    ids=str,
)
def test_tools_and_the_choice_reach_the_model(
    server: Server, claude: anthropic.Anthropic, choice: Any, wanted: tuple[str, str, bool]
) -> None:
    claude.messages.create(
        **asked(tools=[ADD, {"name": "now", "type": "custom"}], tool_choice=choice)
    )

    use = prompt_of(server).tool_use
    assert isinstance(use, ToolUse)
    assert (use.choice, use.name, use.is_parallel) == wanted
    add, now = use.tools
    assert (add.name, add.description, json.loads(add.parameters)) == (
        "add",
        "Adds.",
        {"type": "object"},
    )
    assert json.loads(now.parameters) == {"type": "object", "properties": {}}


def test_a_whole_answer_has_thinking_text_and_calls(
    server: Server, claude: anthropic.Anthropic
) -> None:
    server.backend.pieces = PIECES

    answer: Any = claude.messages.create(**asked(tools=[ADD]))

    assert answer.stop_reason == "tool_use"
    thinking, text, add, now = answer.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Hm.")
    assert text.text == "Let me see."
    assert (add.id, add.name, add.input) == ("abc123xyz", "add", {"a": 1})
    assert (now.name, now.input) == ("now", {})


def test_a_stream_has_the_same_in_blocks(server: Server, claude: anthropic.Anthropic) -> None:
    server.backend.pieces = PIECES
    server.backend.waits = (Reading(tokens=1, total=3),)

    with claude.messages.stream(**asked(tools=[ADD])) as stream:
        events = [event.type for event in stream]
        final: Any = stream.get_final_message()

    assert final.stop_reason == "tool_use"
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [final.content[0].thinking, final.content[1].text] == ["Hm.", "Let me see."]
    assert [block.input for block in final.content[2:]] == [{"a": 1}, {}]
    assert (final.usage.input_tokens, final.usage.output_tokens) == (2, len(PIECES))
    assert events.count("content_block_start") == events.count("content_block_stop") == 4
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def test_arguments_that_were_cut_off_are_kept_as_text(
    server: Server, claude: anthropic.Anthropic
) -> None:
    server.backend.pieces = PIECES[4:6]

    answer: Any = claude.messages.create(**asked(tools=[ADD]))

    assert answer.content[0].input == {"arguments": '{"a": '}


def test_tokens_are_counted_before_anything_is_computed(
    server: Server, claude: anthropic.Anthropic
) -> None:
    counted = claude.messages.count_tokens(model="guide", messages=HI, system="ab", tools=[ADD])

    assert counted.input_tokens == len("ab1 + 1?")
    assert not server.backend.generated


@pytest.mark.parametrize(
    ("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)]
)
def test_thinking_is_asked_of_the_template(
    server: Server, claude: anthropic.Anthropic, kind: str, thinks: bool
) -> None:
    claude.messages.create(**asked(thinking={"type": kind, "budget_tokens": 1024}))

    assert json.loads(prompt_of(server).variables)["enable_thinking"] is thinks


def test_a_last_message_of_the_assistant_is_continued(
    server: Server, claude: anthropic.Anthropic
) -> None:
    claude.messages.create(**asked(messages=[*HI, {"role": "assistant", "content": "It is"}]))

    assert prompt_of(server).continues


def test_names_of_anthropics_own_models_mean_the_loaded_one(
    server: Server, claude: anthropic.Anthropic
) -> None:
    """Its programs ask for a small one beside the one that is set."""
    assert claude.messages.create(**asked(model="claude-haiku-4-5")).model == "guide"
    assert server.backend.generated[-1].model is None


def test_another_model_is_not_found(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="is not on this computer"):
        claude.messages.create(**asked(model="gpt-5"))


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": None}]}]},
            "messages.0.content.0",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tools": [{"name": ""}]}, "tools"),
    ],
    ids=str,
)
def test_what_is_not_offered_is_named(
    claude: anthropic.Anthropic, fields: dict[str, Any], where: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(**asked(**fields))

    error: Any = refused.value.body
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert where in error["error"]["message"]


def test_an_error_before_the_answer_has_a_status(
    server: Server, claude: anthropic.Anthropic
) -> None:
    server.backend.fails_before = NotReadyError("It is being loaded.")

    with pytest.raises(anthropic.InternalServerError) as refused:
        claude.messages.create(**asked(stream=True))

    assert refused.value.status_code == 503
    assert refused.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


def test_an_error_in_the_middle_of_an_answer_is_its_last_event(server: Server) -> None:
    server.backend.fails_after = PeerLostError("The laptop is gone.")

    answer = httpx.post(
        f"{server.url}/v1/messages", json=asked(stream=True), headers={"x-api-key": TOKEN}
    )

    *_, name, data = answer.text.strip().splitlines()
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["message"] == "The laptop is gone."


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}], ids=str)
def test_without_the_key_nothing_is_answered(server: Server, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{server.url}/v1/messages", json=asked(), headers=headers)

    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
