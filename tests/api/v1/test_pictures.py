"""Each of the APIs brings pictures as its clients send them, and says what it does not take."""

import base64
from typing import Any

import httpx
import pytest
from fake_backend import Server

from potluck.api.prompts import ChatPrompt, ChatTurn, GivenPicture
from potluck.api.v1.pictures import MOST_PICTURES

pytestmark = pytest.mark.net

FILE = b"\x89PNG not looked at here"
DATA = base64.b64encode(FILE).decode()
URL = f"data:image/png;base64,{DATA}"
OPENAI = {"type": "image_url", "image_url": {"url": URL}}
TEXTS = [{"type": "text", "text": "one"}, OPENAI, {"type": "text", "text": "two"}]
CALL = {"id": "1", "type": "function", "function": {"name": "see", "arguments": "{}"}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXTS}]},
    "/v1/responses": {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "one"},
                    {"type": "input_image", "image_url": URL},
                    {"type": "input_text", "text": "two"},
                ],
            }
        ]
    },
    "/v1/messages": {
        "max_tokens": 5,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "image", "source": SOURCE},
                    {"type": "text", "text": "two"},
                ],
            }
        ],
    },
    "/api/chat": {"messages": [{"role": "user", "content": "one", "images": [DATA]}]},
    "/api/generate": {"prompt": "one", "images": [DATA]},
}
PLACES = {
    "/v1/responses": ("one\ntwo", 3),
    "/v1/messages": ("one\ntwo", 3),
    "/v1/chat/completions": ("onetwo", 3),
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_picture_reaches_the_node_where_it_stands_in_the_text(
    server: Server, http: httpx.Client, path: str
) -> None:
    answer = http.post(path, json={"model": "guide", **REQUESTS[path]})

    assert answer.status_code == 200, answer.text
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    text, at = PLACES.get(path, ("one", 0))
    assert prompt.turns[-1].content == text
    assert prompt.turns[-1].pictures == (GivenPicture(data=FILE, at=at),)


RESULTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": TEXTS},
        ]
    },
    "/v1/responses": {
        "input": [
            {"type": "function_call", "call_id": "1", "name": "see", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "1",
                "output": REQUESTS["/v1/responses"]["input"][0]["content"],
            },
        ]
    },
    "/v1/messages": {
        "max_tokens": 5,
        "messages": [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "see", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": REQUESTS["/v1/messages"]["messages"][0]["content"],
                    }
                ],
            },
        ],
    },
}


@pytest.mark.parametrize("path", RESULTS)
def test_a_tools_result_may_have_pictures(server: Server, http: httpx.Client, path: str) -> None:
    answer = http.post(path, json={"model": "guide", **RESULTS[path]})

    assert answer.status_code == 200, answer.text
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    text, at = PLACES[path]
    assert prompt.turns[-1] == ChatTurn(
        role="tool", content=text, call_id="1", pictures=(GivenPicture(data=FILE, at=at),)
    )


@pytest.mark.parametrize(
    ("part", "role", "words"),
    [
        ({"url": "https://example.org/cat.png"}, "user", "--fetch-pictures"),
        ({"url": "file:///etc/passwd"}, "user", "opens no files"),
        ({"url": "data:image/png,abc"}, "user", "must be in base64"),
        ({"url": "data:image/png;base64,%%%"}, "user", "is damaged"),
        ({"url": "data:image/png;base64,"}, "user", "is empty"),
        ({"url": URL}, "system", "only messages of the user and of tools"),
    ],
)
def test_what_is_no_picture_is_said(
    http: httpx.Client, part: dict[str, str], role: str, words: str
) -> None:
    content = [{"type": "image_url", "image_url": part}]
    body = {"model": "guide", "messages": [{"role": role, "content": content}]}

    answer = http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "messages[0].content" in answer.json()["error"]["param"]


def test_more_pictures_than_a_request_may_have_are_refused(http: httpx.Client) -> None:
    content = [OPENAI] * (MOST_PICTURES + 1)
    body = {"model": "guide", "messages": [{"role": "user", "content": content}]}

    answer = http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert "pictures are more than" in answer.json()["error"]["message"]
