"""Requests that are answered several times, or that have several prompts."""

import json
from typing import Any

import httpx
import pytest
from fake_backend import Server

from potluck.api.prompts import TextPrompt, TokenPrompt
from potluck.errors import EngineError

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_n_answers_have_an_index_and_a_seed_each(http: httpx.Client, server: Server) -> None:
    body = {"messages": HI, "n": 3, "seed": 5}

    answer = http.post("/v1/chat/completions", json=body).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello, world."}
    assert sorted(one.sampling.seed or 0 for one in server.backend.generated) == [5, 6, 7]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 12


def test_several_prompts_are_answered_in_their_order(http: httpx.Client, server: Server) -> None:
    body = {"prompt": ["a", [5, 6]], "n": 2, "max_tokens": 1}

    answer = http.post("/v1/completions", json=body).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    asked = [one.prompt for one in server.backend.generated]
    assert asked.count(TextPrompt("a")) == 2
    assert asked.count(TokenPrompt((5, 6))) == 2
    assert answer["usage"]["prompt_tokens"] == 3 + 2


def test_streamed_answers_come_side_by_side_with_one_usage(http: httpx.Client) -> None:
    body = {
        "messages": HI,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    *chunks, last = chunks_of(http.post("/v1/chat/completions", json=body))

    for index in (0, 1):
        of_one = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in of_one) == "Hello, world."
        assert of_one[-1]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] == 3


def test_the_best_of_several_is_given_without_log_probabilities(
    http: httpx.Client, server: Server
) -> None:
    body = {"prompt": "x", "best_of": 3, "n": 1}

    answer = http.post("/v1/completions", json=body).json()

    assert len(answer["choices"]) == 1
    assert answer["choices"][0]["logprobs"] is None
    assert [one.sampling.logprobs for one in server.backend.generated] == [0, 0, 0]
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_one_answer_ends_all(http: httpx.Client, server: Server, stream: bool) -> None:
    server.backend.fails_before = EngineError("The computer is on fire.")
    response = http.post("/v1/chat/completions", json={"messages": HI, "n": 2, "stream": stream})

    assert response.status_code == 503
    assert "on fire" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_completion_tokens": -1, "max_tokens": 3}, "max_tokens", None),
        ({"top_k": 40.0}, "top_k", 40),
        ({"top_p": 0}, "top_p", 1e-9),
        ({"presence_penalty": 1.5}, "presence_penalty", 1.5),
        ({"logit_bias": {"5": -100, "7": 2.5}}, "logit_bias", ((5, -100.0), (7, 2.5))),
    ],
)
def test_fields_as_clients_send_them(
    http: httpx.Client, server: Server, sent: dict[str, Any], name: str, value: object
) -> None:
    assert http.post("/v1/chat/completions", json={"messages": HI, **sent}).status_code == 200

    (asked,) = server.backend.generated
    assert getattr(asked if name == "max_tokens" else asked.sampling, name) == value
