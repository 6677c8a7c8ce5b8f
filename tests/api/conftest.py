"""The fake node behind the real server, and clients of it."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from fake_backend import TOKEN, Server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=10, trust_env=False) as client:
        yield client


@pytest.fixture
def ai(server: Server) -> Iterator[openai.OpenAI]:
    transport = openai.DefaultHttpxClient(timeout=10, trust_env=False)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, http_client=transport
    ) as client:
        yield client
