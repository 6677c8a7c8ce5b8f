"""Ollama's API, asked by its official client and by hand."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from fake_backend import MODEL_ID, TOKEN, Server

from potluck.api.events import CallPiece, Loading, Piece, Waiting
from potluck.api.prompts import ChatPrompt, ChatTurn, TextPrompt, ToolCall
from potluck.api.values.schema import ServedModel
from potluck.errors import PeerLostError

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    client = ollama.Client(server.url, headers=headers, timeout=10, trust_env=False)
    yield client
    client._client.close()


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.iter_lines()]


def test_a_chat_is_answered_at_once(client: ollama.Client, server: Server) -> None:
    answer = client.chat("guide", HI, options={"temperature": 0.5, "num_predict": 3, "seed": 7})

    assert answer.message.content == "Hello, world"
    assert (answer.model, answer.done, answer.done_reason) == ("guide", True, "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (3, 3)
    assert answer.prompt_eval_duration == 250_000_000
    assert answer.eval_duration == 40_000_000
    (asked,) = server.backend.generated
    assert asked.prompt == ChatPrompt((ChatTurn(role="user", content="hi"),))
    assert (asked.sampling.temperature, asked.sampling.seed, asked.max_tokens) == (0.5, 7, 3)


def test_a_chat_is_streamed_piece_by_piece(client: ollama.Client) -> None:
    *pieces, last = client.chat("guide", HI, stream=True)

    assert [piece.message.content for piece in pieces] == ["Hello", ", ", "world", "."]
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.message.content) == (True, "stop", "")


def test_a_text_is_put_into_the_template_unless_it_is_raw(
    client: ollama.Client, server: Server
) -> None:
    assert client.generate("guide", "hi", system="Be brief.").response == "Hello, world."
    client.generate("guide", "hi", raw=True)
    client.generate("guide", "hi", suffix="there")

    chat, raw, between = server.backend.generated
    assert between.prompt == TextPrompt("hi", suffix="there")
    turns = (ChatTurn(role="system", content="Be brief."), ChatTurn(role="user", content="hi"))
    assert chat.prompt == ChatPrompt(turns)
    assert (raw.prompt, raw.max_tokens) == (TextPrompt("hi"), None)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_without_a_prompt_the_model_is_only_loaded(
    http: httpx.Client, server: Server, path: str
) -> None:
    answer = http.post(f"/api/{path}", json={"model": "guide", "stream": False}).json()

    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert [asked.max_tokens for asked in server.backend.generated] == [0]


def test_what_an_answer_waits_for_is_told_by_lines_without_text(
    http: httpx.Client, server: Server
) -> None:
    server.backend.waits = (Waiting(place=1, seconds=None), Loading(model="guide", fraction=0.5))

    response = http.post("/api/generate", json={"model": "guide", "prompt": "hi"})

    assert response.headers["content-type"] == "application/x-ndjson"
    assert [line["response"] for line in lines(response)][:3] == ["", "", "Hello"]


def test_the_form_of_an_answer_is_json_or_a_schema(client: ollama.Client, server: Server) -> None:
    client.chat("guide", HI, format="json")
    client.chat("guide", HI, format={"type": "array"})
    client.chat("guide", HI, format="")

    kinds = [asked.constraint and asked.constraint.kind for asked in server.backend.generated]
    assert kinds == ["json_schema", "loose_json_schema", None]


def test_tools_and_their_results_reach_the_model(client: ollama.Client, server: Server) -> None:
    called: Any = {"function": {"name": "add", "arguments": {"a": 1}}}
    history = [
        *HI,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [called]},
        {"role": "tool", "content": "5", "tool_name": "add"},
    ]
    add: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

    client.chat("guide", history, tools=[add])

    (asked,) = server.backend.generated
    assert isinstance(asked.prompt, ChatPrompt)
    assert asked.prompt.tool_use is not None
    assert [tool.name for tool in asked.prompt.tool_use.tools] == ["add"]
    call = ToolCall(id="", name="add", arguments='{"a":1}')
    assert asked.prompt.turns[1:] == (
        ChatTurn(role="assistant", content="", reasoning="Hm.", calls=(call,)),
        ChatTurn(role="tool", content="5", name="add"),
    )


def test_calls_come_whole_and_after_what_the_model_thinks(
    client: ollama.Client, server: Server
) -> None:
    server.backend.pieces = [
        Piece(text="", reasoning="Hm", token_ids=(5,)),
        Piece(text="Wait.", token_ids=(6,)),
        Piece(text="", token_ids=(7,), calls=(CallPiece(index=0, id="a", name="add"),)),
        Piece(text="", token_ids=(8,), calls=(CallPiece(index=0, arguments='{"a": 1}'),)),
        Piece(text="", token_ids=(9,), calls=(CallPiece(index=1, id="b", name="now"),)),
        Piece(text="", token_ids=(10,), calls=(CallPiece(index=1, arguments='{"cut'),)),
    ]

    *lines, last = client.chat("guide", HI, stream=True)
    whole = client.chat("guide", HI).message

    said = [(line.message.thinking, line.message.content) for line in lines]
    assert said == [("Hm", ""), (None, "Wait."), (None, ""), (None, "")]
    calls = [call.function for line in lines for call in line.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [
        ("add", {"a": 1}),
        ("now", {"arguments": '{"cut'}),  # the answer ended inside of it
    ]
    assert (last.done_reason, last.message.tool_calls) == ("stop", None)
    assert (whole.thinking, whole.content) == ("Hm", "Wait.")
    assert [call.function for call in whole.tool_calls or ()] == calls
    written = client.generate("guide", "hi")
    assert (written.thinking, written.response) == ("Hm", "Wait.")


@pytest.mark.parametrize(
    ("think", "variables"),
    [
        (None, {}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("high", {"reasoning_effort": "high"}),
    ],
)
def test_whether_the_model_thinks_reaches_its_template(
    client: ollama.Client, server: Server, think: Any, variables: dict[str, Any]
) -> None:
    client.chat("guide", HI, think=think)

    (asked,) = server.backend.generated
    assert isinstance(asked.prompt, ChatPrompt)
    assert json.loads(asked.prompt.variables) == variables


def test_models_are_listed_with_what_is_known_of_them(
    client: ollama.Client, server: Server
) -> None:
    loaded = ServedModel(
        name="Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M",
        created=1_700_000_000,
        aliases=(MODEL_ID,),
        is_loaded=True,
        nbytes=5_000_000_000,
        format="gguf",
        context=4096,
        parameters=8_190_000_000,
        family="qwen3",
    )
    server.update(served=(loaded, ServedModel(name="qwen3:0.6b", created=1)))

    first, second = client.list().models
    assert (first.model, second.model) == (f"{loaded.name}:latest", "qwen3:0.6b")
    assert (first.size, first.digest) == (loaded.nbytes, MODEL_ID)
    assert first.details is not None
    assert first.details.parameter_size == "8.2B"
    assert first.details.quantization_level == "Q4_K_M"
    assert [(model.model, model.context_length) for model in client.ps().models] == [
        (first.model, 4096)
    ]
    shown = client.show(str(first.model))
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen3.context_length"] == 4096
    assert shown.capabilities == ["completion", "tools", "embedding"]


def test_a_model_that_sees_is_shown_as_one(client: ollama.Client, server: Server) -> None:
    server.update(served=(ServedModel(name="eye", created=1, sees=True),))

    assert client.show("eye").capabilities == ["completion", "tools", "embedding", "vision"]


def test_version_is_one_that_clients_compare(http: httpx.Client) -> None:
    major, minor, _ = http.get("/api/version").json()["version"].split(".")
    assert (int(major), int(minor)) >= (0, 6)


def test_errors_are_a_sentence_under_error(client: ollama.Client, http: httpx.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="guide, potluck") as refused:
        client.chat("gpt-9", HI)
    assert refused.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="potluck models pull"):
        client.pull("qwen3")
    answer = http.post("/api/chat", json={"model": "guide", "options": {"top_p": 7}})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    nowhere = http.get("/api/nowhere")
    assert (nowhere.status_code, list(nowhere.json())) == (404, ["error"])


def test_an_answer_that_breaks_off_ends_with_an_error(
    client: ollama.Client, server: Server
) -> None:
    server.backend.fails_after = PeerLostError("Laptop is gone.")
    stream = client.chat("guide", HI, stream=True)
    assert next(stream).message.content == "Hello"
    with pytest.raises(ollama.ResponseError, match="Laptop is gone"):
        next(stream)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "", "images": ["?"]}]},
        {"options": {"mirostat": 1}},
    ],
)
def test_what_a_chat_does_not_offer_is_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    asked = {"model": "guide", "messages": HI} | fields
    answer = http.post("/api/chat", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith((*fields, "messages[0].content", "options.mirostat"))


@pytest.mark.parametrize(
    "fields",
    [{"template": "{{ .Prompt }}"}, {"context": [1, 2]}, {"images": ["aGk="], "raw": True}],
)
def test_what_a_completion_does_not_offer_is_refused(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    answer = http.post("/api/generate", json={"model": "guide", "prompt": "hi"} | fields)
    assert answer.status_code == 400
    assert next(iter(fields)) in answer.json()["error"]
