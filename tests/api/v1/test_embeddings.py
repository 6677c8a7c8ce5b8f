"""`/v1/embeddings` and Ollama's, as their official clients ask for them."""

import base64
import struct
from typing import Any

import httpx
import ollama
import openai
import pytest
from fake_backend import TOKEN, Server

from potluck.api.prompts import TextPrompt, TokenPrompt

pytestmark = pytest.mark.net


@pytest.fixture(autouse=True)
def embedding(server: Server) -> None:
    server.backend.embedding = (3.0, 4.0, 12.0)


def test_embeddings_have_length_one_and_come_in_order(ai: openai.OpenAI, server: Server) -> None:
    answer = ai.embeddings.create(model="guide", input=["a", "b"])  # in base64, by itself

    assert [each.index for each in answer.data] == [0, 1]
    for each in answer.data:
        assert each.embedding == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("guide", 6, 6)
    assert {asked.prompt for asked in server.backend.generated} == {
        TextPrompt("a"),
        TextPrompt("b"),
    }
    assert all(asked.embeds and asked.max_tokens == 0 for asked in server.backend.generated)


def test_fewer_dimensions_have_length_one_again(ai: openai.OpenAI) -> None:
    answer = ai.embeddings.create(model="guide", input="a", encoding_format="float", dimensions=2)

    assert answer.data[0].embedding == pytest.approx([0.6, 0.8])
    with pytest.raises(openai.BadRequestError, match="of this model have 3"):
        ai.embeddings.create(model="guide", input="a", dimensions=4)


def test_numbers_in_base64_are_little_endian_floats(http: httpx.Client) -> None:
    asked = {"model": "guide", "input": "a", "encoding_format": "base64"}
    (given,) = http.post("/v1/embeddings", json=asked).json()["data"]

    numbers = struct.unpack("<3f", base64.b64decode(given["embedding"]))
    assert numbers == pytest.approx([3 / 13, 4 / 13, 12 / 13])


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ([5, 6], [TokenPrompt((5, 6))]),
        ([[5, 6], [7]], [TokenPrompt((5, 6)), TokenPrompt((7,))]),
    ],
)
def test_token_ids_are_taken(
    http: httpx.Client, server: Server, given: Any, prompts: list[TokenPrompt]
) -> None:
    assert http.post("/v1/embeddings", json={"input": given}).status_code == 200
    assert [asked.prompt for asked in server.backend.generated] == prompts


@pytest.mark.parametrize("given", [[], [1, "a"], [-1], None])
def test_other_inputs_are_refused_by_name(http: httpx.Client, given: Any) -> None:
    answer = http.post("/v1/embeddings", json={"input": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_many_texts_are_asked_for_a_few_at_a_time(ai: openai.OpenAI, server: Server) -> None:
    texts = [str(number) for number in range(20)]

    answer = ai.embeddings.create(model="guide", input=texts)

    assert len(answer.data) == 20
    assert {asked.prompt for asked in server.backend.generated} == {*map(TextPrompt, texts)}


def test_clients_of_ollama_get_them_too(server: Server, http: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    client = ollama.Client(server.url, headers=headers, timeout=10, trust_env=False)

    several = client.embed("guide", ["a", "b"], dimensions=2)
    one = client.embeddings("guide", "a")

    assert [list(each) for each in several.embeddings] == [pytest.approx([0.6, 0.8])] * 2
    assert several.prompt_eval_count == 6
    assert list(one.embedding) == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    client._client.close()
