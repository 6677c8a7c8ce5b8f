"""`potluck serve`, asked by the official client: one real node, a real model, real sockets."""

import socket
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from byte_model import make_byte_model
from hosts import Host
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.timeout(300)]

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    model = make_byte_model(tmp_path_factory.mktemp("serve") / "byte-model")
    host = Host("alone", tmp_path_factory.mktemp("home"), None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    serving = host.start(
        "-m", "potluck", "serve", "--model", str(model), "--scheme", "f32", "--port", str(port)
    )
    try:
        said: list[str] = []
        assert serving.stdout is not None
        for line in serving.stdout:  # it says so when it listens
            said.append(line)
            if str(port) in line:
                break
        assert str(port) in said[-1], said
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60) as client:
            yield client
    finally:
        host.stop()


def test_the_loaded_model_is_listed_and_another_is_not_found(client: OpenAI) -> None:
    assert "byte-model" in [model.id for model in client.models.list()]
    with pytest.raises(NotFoundError):
        client.completions.create(model="gpt-5", prompt="Hello")


def test_a_chat_streams_what_it_answers_at_once(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    options = {"model": "byte-model", "messages": messages, "max_tokens": 12, "seed": 7}

    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    with client.chat.completions.create(stream=True, **options) as stream:  # type: ignore[call-overload]
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]

    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 12


def test_token_ids_go_in_and_come_out_with_log_probabilities(client: OpenAI) -> None:
    answer = client.completions.create(
        model="byte-model",
        prompt=PROMPT,
        max_tokens=8,
        temperature=0,
        logprobs=3,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )

    choice = answer.choices[0]
    assert len(choice.model_extra["token_ids"]) == 8  # type: ignore[index]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert all(value is not None and value <= 0 for value in choice.logprobs.token_logprobs)
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT)


def test_the_same_seed_gives_the_same_answer_and_another_does_not(client: OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="byte-model", prompt=PROMPT, max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_a_second_turn_finds_the_first_one_in_the_cache(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "A long enough first message, to be remembered"}]
    options = {"model": "byte-model", "max_tokens": 4, "temperature": 0}
    first = client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]
    messages.append({"role": "user", "content": "and more"})

    second = client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]

    cached = second.usage.prompt_tokens_details.cached_tokens
    assert 0 < first.usage.prompt_tokens - cached < 16


class Person(BaseModel):
    name: Literal["Ada", "Grace"]
    born: bool


def test_parsed_answers_are_objects_of_the_schema(client: OpenAI) -> None:
    """The model is a random one: only the grammar makes its answers readable."""
    messages: Any = [{"role": "user", "content": "Who?"}]

    for seed in range(3):
        answer = client.chat.completions.parse(
            model="byte-model", messages=messages, response_format=Person, seed=seed
        )

        assert isinstance(answer.choices[0].message.parsed, Person)
        assert answer.choices[0].finish_reason == "stop"


def test_a_grammar_of_other_clients_is_followed_and_a_wrong_one_is_named(client: OpenAI) -> None:
    answer = client.completions.create(
        model="byte-model", prompt="x", n=2, extra_body={"guided_regex": "[ab]{3}"}
    )
    assert {letter for choice in answer.choices for letter in choice.text} <= {"a", "b"}
    assert [len(choice.text) for choice in answer.choices] == [3, 3]

    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model="byte-model", prompt="x", extra_body={"grammar": "("})
    assert refused.value.param == "grammar"


def test_a_bias_and_penalties_change_what_is_chosen(client: OpenAI) -> None:
    def ids(**fields: Any) -> list[int]:
        answer = client.completions.create(
            model="byte-model",
            prompt=PROMPT,
            temperature=0,
            max_tokens=8,
            extra_body={"return_token_ids": True, "ignore_eos": True},
            **fields,
        )
        return answer.choices[0].token_ids  # type: ignore[attr-defined]

    assert set(ids(logit_bias={"65": 100})) == {65}
    assert len(set(ids(logit_bias={"65": 30, "66": 30}, frequency_penalty=2.0))) > 1
