"""`/v1`, asked by the official client over a real socket.

`ai` is an `openai.OpenAI`; typed loosely, because what Potluck adds is none of its attributes.
"""

import json
from typing import Any

import httpx
import pytest
from fake_backend import Server

from potluck.api.events import Reading, Waiting
from potluck.api.prompts import ChatPrompt, ChatTurn, SamplingOptions, TextPrompt, TokenPrompt
from potluck.errors import EngineError, NotReadyError

pytestmark = pytest.mark.net

HI: list[Any] = [{"role": "user", "content": "hi"}]


def post(http: httpx.Client, path: str, **body: object) -> httpx.Response:
    return http.post(path, json=body)


def events(response: httpx.Response) -> list[str]:
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]


def test_chat_answers_with_text_usage_and_measurements(ai: Any) -> None:
    answer = ai.chat.completions.create(model="guide", messages=HI)

    assert answer.choices[0].message.content == "Hello, world."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert answer.usage.total_tokens == 7
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.potluck["tokens_per_s"] == 50.0
    assert answer.potluck["stages"] == [{"node": "here", "compute_ms": 1.0}]


def test_chat_streams_pieces_as_they_come(ai: Any) -> None:
    chunks = list(ai.chat.completions.create(model="guide", messages=HI, stream=True))

    texts = [chunk.choices[0].delta.content for chunk in chunks]
    assert texts == ["", "Hello", ", ", "world", ".", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_and_measurements_come_with_the_last_chunk(ai: Any) -> None:
    plain = list(ai.chat.completions.create(model="guide", messages=HI, stream=True))
    with_usage = list(
        ai.chat.completions.create(
            model="guide", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )

    assert plain[-1].potluck["time_to_first_token_s"] == 0.25
    assert with_usage[-1].choices == []
    assert with_usage[-1].usage.completion_tokens == 4
    assert with_usage[-1].potluck["time_to_first_token_s"] == 0.25
    assert sum("potluck" in chunk.model_extra for chunk in with_usage) == 1


def test_stream_ends_with_done(http: httpx.Client) -> None:
    response = post(http, "/v1/chat/completions", messages=HI, stream=True)

    assert response.headers["content-type"].startswith("text/event-stream")
    assert events(response)[-1] == "[DONE]"


def test_who_waits_is_told_the_place_in_comments(
    server: Server, http: httpx.Client, ai: Any
) -> None:
    server.backend.waits = (Waiting(place=3, seconds=20.4), Waiting(place=1, seconds=None))

    told = post(http, "/v1/chat/completions", messages=HI, stream=True).text.split("\n\n")
    chunks = list(ai.chat.completions.create(model="guide", messages=HI, stream=True))

    assert told[:2] == [": waiting, place 3, about 20 s", ": waiting, place 1"]
    assert told[2].startswith("data: ")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world."


def test_a_stream_begins_before_its_prompt_is_read(server: Server, http: httpx.Client) -> None:
    server.backend.waits = (Reading(tokens=0, total=5085), Reading(tokens=512, total=5085))
    server.backend.fails_before = EngineError("Laptop stopped answering.")

    response = post(http, "/v1/chat/completions", messages=HI, stream=True)

    assert response.status_code == 200
    assert response.text.startswith(
        ": reading, 0 of 5085 tokens\n\n: reading, 512 of 5085 tokens\n\n"
    )
    assert json.loads(events(response)[-1])["error"]["message"] == "Laptop stopped answering."


def test_who_waits_for_a_whole_answer_gets_it(server: Server, ai: Any) -> None:
    server.backend.waits = (Waiting(place=1, seconds=None),)

    answer = ai.chat.completions.create(model="guide", messages=HI)

    assert answer.choices[0].message.content == "Hello, world."


def test_token_limit_is_told_as_length(ai: Any) -> None:
    answer = ai.chat.completions.create(model="guide", messages=HI, max_completion_tokens=2)

    assert answer.choices[0].message.content == "Hello, "
    assert answer.choices[0].finish_reason == "length"


def test_conversation_and_sampling_reach_the_backend(server: Server, ai: Any) -> None:
    ai.chat.completions.create(
        model="guide",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ],
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop="END",
        max_tokens=9,
        extra_body={
            "top_k": -1,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "something_unknown": {"deep": [1]},
        },
    )

    (request,) = server.backend.generated
    assert request.prompt == ChatPrompt(
        (
            ChatTurn(role="system", content="Be brief."),
            ChatTurn(role="user", content="ab"),
            ChatTurn(role="assistant", content="c"),
            ChatTurn(role="user", content="d"),
        )
    )
    assert request.sampling == SamplingOptions(
        temperature=0.5, top_p=0.9, top_k=0, min_p=0.05, repetition_penalty=1.1, seed=2**63 - 1
    )
    assert (request.stop, request.max_tokens, request.ignore_eos) == (("END",), 9, True)


def test_fields_of_other_servers_mean_what_they_mean_there(server: Server, ai: Any) -> None:
    neutral = {"mirostat": 0, "typical_p": 1.0, "top_n_sigma": -1, "bad_words": [], "lora": None}
    named = {"n_predict": 7, "repeat_penalty": 1.2, **neutral}

    ai.chat.completions.create(model="guide", messages=HI, extra_body=named)
    ai.completions.create(model="guide", prompt="x", extra_body=named)
    ai.completions.create(model="guide", prompt="x", max_tokens=9, extra_body=named)

    asked = server.backend.generated
    assert [request.max_tokens for request in asked] == [7, 7, 9]
    assert {request.sampling.repetition_penalty for request in asked} == {1.2}


def test_what_is_not_said_is_left_to_the_model(server: Server, ai: Any) -> None:
    ai.chat.completions.create(model="guide", messages=HI)

    (request,) = server.backend.generated
    assert request.sampling == SamplingOptions(seed=request.sampling.seed)  # any one
    assert (request.stop, request.max_tokens, request.ignore_eos) == ((), None, False)


def test_completion_of_text(server: Server, ai: Any) -> None:
    answer = ai.completions.create(model="guide", prompt="Once", stop=["a", "b"])

    assert answer.object == "text_completion"
    assert answer.choices[0].text == "Hello, world."
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7
    (request,) = server.backend.generated
    assert request.prompt == TextPrompt("Once")
    assert request.stop == ("a", "b")
    assert request.max_tokens == 16  # OpenAI's default for this endpoint


def test_a_completion_between_two_texts(server: Server, ai: Any) -> None:
    ai.completions.create(model="guide", prompt="def ", suffix=": pass")

    assert server.backend.generated[0].prompt == TextPrompt("def ", suffix=": pass")


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_completion_of_token_ids(server: Server, ai: Any, prompt: list) -> None:
    answer = ai.completions.create(
        model="guide", prompt=prompt, extra_body={"return_token_ids": True}
    )

    assert server.backend.generated[0].prompt == TokenPrompt((5, 6, 7))
    assert answer.choices[0].token_ids == [100, 101, 102, 103]
    assert answer.choices[0].prompt_token_ids == [5, 6, 7]


def test_completion_streams(ai: Any) -> None:
    chunks = list(
        ai.completions.create(
            model="guide",
            prompt=["Once"],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
    )

    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello, world."
    assert chunks[0].choices[0].prompt_token_ids == [1, 2, 3]
    assert [c.choices[0].token_ids for c in chunks[1:5]] == [[100], [101], [102], [103]]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.prompt_tokens == 3


def test_token_ids_of_a_chat(ai: Any) -> None:
    asked: dict[str, Any] = {
        "model": "guide",
        "messages": HI,
        "extra_body": {"return_token_ids": True},
    }

    whole = ai.chat.completions.create(**asked)
    chunks = list(ai.chat.completions.create(**asked, stream=True))

    assert whole.prompt_token_ids == [1, 2, 3]
    assert whole.choices[0].token_ids == [100, 101, 102, 103]
    assert chunks[0].prompt_token_ids == [1, 2, 3]
    assert [c.choices[0].token_ids for c in chunks[1:-1]] == [[100], [101], [102], [103]]


def test_logprobs_of_a_chat(ai: Any) -> None:
    asked: dict[str, Any] = {"model": "guide", "messages": HI, "logprobs": True, "top_logprobs": 2}

    whole = ai.chat.completions.create(**asked)
    chunks = list(ai.chat.completions.create(**asked, stream=True))

    probs = whole.choices[0].logprobs
    assert probs is not None
    assert probs.content is not None
    assert [token.token for token in probs.content] == ["Hello", ", ", "world", "."]
    assert probs.content[0].logprob == -0.5
    assert probs.content[0].bytes == list(b"Hello")
    assert probs.content[0].top_logprobs[1].bytes == [0xF0, 0x9F]  # half a character
    assert chunks[1].choices[0].logprobs.content[0].token == "Hello"


def test_logprobs_of_a_completion_count_characters(ai: Any) -> None:
    whole = ai.completions.create(model="guide", prompt="x", logprobs=1)
    chunks = list(ai.completions.create(model="guide", prompt="x", logprobs=0, stream=True))

    probs = whole.choices[0].logprobs
    assert probs is not None
    assert probs.tokens == ["Hello", ", ", "world", "."]
    assert probs.text_offset == [0, 5, 7, 12]
    assert probs.token_logprobs == [-0.5] * 4
    assert probs.top_logprobs == [{"Hello": -0.5}, {", ": -0.5}, {"world": -0.5}, {".": -0.5}]
    offsets = [c.choices[0].logprobs.text_offset for c in chunks[:-1]]
    assert offsets == [[0], [5], [7], [12]]
    assert chunks[0].choices[0].logprobs.top_logprobs is None


def test_held_back_text_makes_no_chunk(server: Server, ai: Any) -> None:
    server.backend.script = ("", "", "🍲")

    chunks = list(ai.chat.completions.create(model="guide", messages=HI, stream=True))
    texts = list(ai.completions.create(model="guide", prompt="x", stream=True))

    assert [c.choices[0].delta.content for c in chunks] == ["", "🍲", None]
    assert [c.choices[0].text for c in texts] == ["🍲", ""]


@pytest.mark.parametrize("header", ["X-Request-Id", "X-Client-Request-Id"])
def test_the_same_request_with_the_same_id_has_the_same_seed(
    server: Server, http: httpx.Client, header: str
) -> None:
    def ask(request_id: str, prompt: str) -> httpx.Response:
        headers = {header: request_id}
        return http.post("/v1/completions", json={"prompt": prompt}, headers=headers)

    answers = [ask("one", "a"), ask("one", "a"), ask("two", "a"), ask("one", "b")]

    assert [answer.headers["x-request-id"] for answer in answers] == ["one", "one", "two", "one"]
    first, same, *others = [request.sampling.seed for request in server.backend.generated]
    assert first == same
    assert first not in others


def test_a_request_without_a_usable_id_gets_one_that_errors_carry_too(http: httpx.Client) -> None:
    for given in ({}, {"x-request-id": "a" * 513}, {"x-request-id": "a\tb"}):
        answer = http.get("/v1/models/none", headers=given)
        assert answer.status_code == 404
        assert answer.headers["x-request-id"].startswith("req_")


def test_who_asks_before_the_model_is_ready_is_told_when_to_ask_again(
    server: Server, http: httpx.Client
) -> None:
    server.backend.fails_before = NotReadyError("Loading: 40%.", progress=0.4)

    answer = post(http, "/v1/completions", prompt="a", stream=True)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    error = answer.json()["error"]
    assert (error["message"], error["progress"]) == ("Loading: 40%.", 0.4)


def test_an_answer_goes_on_after_tokens_that_the_client_has(
    server: Server, http: httpx.Client
) -> None:
    id_ = {"X-Request-Id": "one"}
    http.post("/v1/chat/completions", json={"messages": HI}, headers=id_)
    http.post("/v1/chat/completions", json={"messages": HI, "known_token_ids": [7, 8]}, headers=id_)

    first, then = server.backend.generated
    assert (first.known, then.known) == ((), (7, 8))
    assert first.sampling.seed == then.sampling.seed


@pytest.mark.parametrize("known", [[-1], [1 << 31], ["7"], 7, [None]])
def test_what_is_no_list_of_tokens_is_refused(http: httpx.Client, known: object) -> None:
    assert post(http, "/v1/completions", prompt="a", known_token_ids=known).status_code == 400


def test_prompt_comes_back_with_its_log_probabilities(ai: Any) -> None:
    asked: Any = {"model": "guide", "prompt": "AB", "echo": True, "logprobs": 1}

    (alone,) = ai.completions.create(max_tokens=0, **asked).choices
    assert alone.text == "AB"
    assert alone.logprobs.tokens == ["A", "B"]
    assert alone.logprobs.token_logprobs == [None, -0.25]
    assert alone.logprobs.top_logprobs == [None, {"B": -0.25}]
    assert alone.logprobs.text_offset == [0, 1]

    (answered,) = ai.completions.create(max_tokens=1, **asked).choices
    assert answered.text == "ABHello"
    assert answered.logprobs.token_logprobs == [None, -0.25, -0.5]

    chunks = [chunk.choices[0] for chunk in ai.completions.create(stream=True, **asked)]
    assert [chunk.text for chunk in chunks][:2] == ["AB", "Hello"]
    assert chunks[1].logprobs.text_offset == [2]


def test_prompt_comes_back_without_log_probabilities(ai: Any) -> None:
    (choice,) = ai.completions.create(model="guide", prompt="AB", echo=True, max_tokens=0).choices
    assert (choice.text, choice.logprobs) == ("AB", None)
