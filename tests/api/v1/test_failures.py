"""What goes wrong in `/v1`, and who goes away: errors with a status, errors within a stream, closed streams."""

import json
from typing import Any

import httpx
import openai
import pytest
from fake_backend import Server

from potluck.errors import EngineError, PromptError

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


def post(http: httpx.Client, path: str, **body: object) -> httpx.Response:
    return http.post(path, json=body)


def events(response: httpx.Response) -> list[str]:
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("stream", [False, True])
def test_error_before_the_first_token_has_a_status(
    server: Server, http: httpx.Client, stream: bool
) -> None:
    server.backend.fails_before = PromptError("The prompt has 9 tokens and the context 8.")

    response = post(http, "/v1/chat/completions", messages=HI, stream=stream)

    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "The prompt has 9 tokens and the context 8.",
        "type": "invalid_request_error",
        "param": None,
        "code": "prompt",
    }


def test_error_after_the_first_token_is_an_event(server: Server, http: httpx.Client) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")

    response = post(http, "/v1/chat/completions", messages=HI, stream=True)

    assert response.status_code == 200
    last = json.loads(events(response)[-1])
    assert last["error"]["message"] == "Laptop stopped answering."
    assert last["error"]["type"] == "server_error"


def test_the_official_client_raises_an_error_inside_a_stream(server: Server, ai: Any) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")

    with pytest.raises(openai.APIError, match="Laptop stopped answering"):
        list(ai.chat.completions.create(model="guide", messages=HI, stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_our_own_fault_tells_nothing_inside(
    server: Server, http: httpx.Client, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server.backend.fails_before = ZeroDivisionError("secret detail")

    response = post(http, "/v1/chat/completions", messages=HI, stream=stream)

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"
    assert "secret" not in response.text
    assert "secret detail" in caplog.text


def test_closing_a_stream_cancels_the_generation(server: Server, ai: Any) -> None:
    server.backend.endless = True

    stream = ai.chat.completions.create(model="guide", messages=HI, stream=True)
    next(iter(stream))
    stream.close()

    assert server.backend.cancelled.wait(30)


def test_giving_up_on_a_whole_answer_cancels_the_generation(server: Server, ai: Any) -> None:
    server.backend.endless = True

    with pytest.raises(openai.APITimeoutError):
        ai.with_options(timeout=1.0).chat.completions.create(model="guide", messages=HI)

    assert server.backend.cancelled.wait(30)
