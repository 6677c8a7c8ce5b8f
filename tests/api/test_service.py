"""What programs ask besides answers."""

import httpx
import pytest
from fake_backend import Server

from potluck.errors import EngineError

pytestmark = pytest.mark.net

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"content": "hi"}, [104, 105]),
        ({"content": "hi", "add_special": True}, [2, 104, 105]),
        ({"prompt": "hi", "model": "guide"}, [2, 104, 105]),
        ({"prompt": "hi", "add_special_tokens": False}, [104, 105]),
        ({"messages": HI}, [104, 105]),
        ({"content": ""}, []),
    ],
    ids=[
        "as llama.cpp asks",
        "llama.cpp, from the beginning of a text",
        "as vLLM asks",
        "vLLM, from the middle of a text",
        "a chat",
        "nothing",
    ],
)
def test_a_text_becomes_tokens(http: httpx.Client, asked: dict, tokens: list[int]) -> None:
    answer = http.post("/tokenize", json=asked).json()

    assert answer == {"tokens": tokens, "count": len(tokens), "max_model_len": 2048}


def test_tokens_come_with_their_text_or_their_bytes(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"content": "hé", "with_pieces": True}).json()

    assert answer["tokens"] == [
        {"id": 104, "piece": "h"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_tokens_become_a_text(http: httpx.Client) -> None:
    answer = http.post("/detokenize", json={"tokens": [104, 0xC3, 0xA9]}).json()

    assert answer == {"content": "hé", "prompt": "hé"}


def test_nothing_to_tokenise_and_another_model_are_refused(http: httpx.Client) -> None:
    nothing = http.post("/tokenize", json={})
    other = http.post("/tokenize", json={"content": "x", "model": "gpt-9"})

    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "content")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


def value_of(http: httpx.Client, name: str) -> float:
    """A value in the answer to `/metrics`."""
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def test_answers_are_counted(server: Server, http: httpx.Client) -> None:
    before = value_of(http, 'potluck_requests_total{end="stop"}')
    tokens = value_of(http, "potluck_completion_tokens_total")
    assert http.post("/v1/chat/completions", json={"messages": HI}).status_code == 200
    server.backend.fails_after = EngineError("Laptop stopped answering.")
    assert http.post("/v1/chat/completions", json={"messages": HI}).status_code == 503

    assert value_of(http, 'potluck_requests_total{end="stop"}') == before + 1
    assert value_of(http, 'potluck_requests_total{end="error"}') >= 1
    assert value_of(http, "potluck_completion_tokens_total") == tokens + len(server.backend.script)
    assert value_of(http, "potluck_requests_running") == 0
