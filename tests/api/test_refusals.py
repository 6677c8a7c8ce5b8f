"""Requests to `/v1` that are refused, with an error that names what is wrong in them."""

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "x" * 40}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def post(http: httpx.Client, path: str, **body: object) -> httpx.Response:
    return http.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "changes", "param"),
    [
        ("chat/completions", {"messages": None}, "messages"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ("chat/completions", {"temperature": "hot"}, "temperature"),
        ("chat/completions", {"temperature": -1}, "temperature"),
        ("chat/completions", {"top_p": -0.1}, "top_p"),
        ("chat/completions", {"top_k": 1.5}, "top_k"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"seed": 1.5}, "seed"),
        ("chat/completions", {"stop": [1]}, "stop[0]"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"n": 0}, "n"),
        ("chat/completions", {"n": 129}, "n"),
        ("chat/completions", {"n_predict": 0}, "n_predict"),
        ("chat/completions", {"mirostat": 2}, "mirostat"),
        ("chat/completions", {"stop_token_ids": list(range(100))}, "stop_token_ids"),
        ("completions", {"prompt": "x", "min_tokens": 5}, "min_tokens"),
        ("chat/completions", {"n": 2, "known_token_ids": [1]}, "known_token_ids"),
        ("chat/completions", {"tools": [{"type": "function"}]}, "tools[0]"),
        ("chat/completions", {"tools": [{"function": {}}]}, "tools[0].function.name"),
        ("chat/completions", {"tools": [TOOL, TOOL]}, "tools"),
        ("chat/completions", {"tools": [TOOL] * 40_000}, "tools"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
        (
            "chat/completions",
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
        ),
        ("chat/completions", {"functions": [{"name": "f"}]}, "functions"),
        ("chat/completions", {"response_format": {"type": "xml"}}, "response_format"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format"),
        ("chat/completions", {"guided_regex": "a", "grammar": "b"}, "grammar"),
        ("chat/completions", {"guided_choice": "a"}, "guided_choice"),
        (
            "chat/completions",
            {"structured_outputs": {"structural_tag": {"x": 1}}},
            "structured_outputs",
        ),
        ("chat/completions", {"modalities": ["audio"]}, "modalities"),
        ("chat/completions", {"logit_bias": {"5": 101}}, "logit_bias"),
        ("chat/completions", {"logit_bias": {"a": 1}}, "logit_bias"),
        ("chat/completions", {"logit_bias": [[5, 1]]}, "logit_bias"),
        ("chat/completions", {"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias"),
        ("chat/completions", {"logit_bias": {str(i): 1 for i in range(9999)}}, "logit_bias"),
        ("chat/completions", {"presence_penalty": 3}, "presence_penalty"),
        ("chat/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ("chat/completions", {"messages": [{"role": "function", "content": "x"}]}, "messages[0]"),
        ("chat/completions", {"messages": [{**HI[0], "tool_calls": [CALL]}]}, "messages[0]"),
        ("completions", {}, "prompt"),
        ("completions", {"prompt": ["a", 1]}, "prompt"),
        ("completions", {"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": [-1]}, "prompt"),
        ("completions", {"prompt": "x", "suffix": "y", "echo": True}, "suffix"),
        ("completions", {"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
        ("completions", {"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ("completions", {"prompt": "x", "logprobs": 21}, "logprobs"),
    ],
)
def test_wrong_field_is_named(http: httpx.Client, path: str, changes: dict, param: str) -> None:
    body = {"messages": HI, "model": "guide"} if path == "chat/completions" else {}

    response = post(http, f"/v1/{path}", **(body | changes))

    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert error["message"].startswith(param) or param in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1},
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"logit_bias": {}},
        {"user": "me", "parallel_tool_calls": True, "stop": None},
    ],
)
def test_options_that_change_nothing_are_accepted(http: httpx.Client, changes: dict) -> None:
    assert post(http, "/v1/chat/completions", messages=HI, **changes).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"messages": [', b"\xff\xfe", b'{"x": ' + b"[" * 100_000]
)
def test_malformed_json_is_told(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/chat/completions", content=body)

    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_too_large_a_body_is_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b" " * ((16 << 20) + 1))

    assert response.status_code == 413
