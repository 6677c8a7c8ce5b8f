"""The port of `serve`: it is open before there is a model, and says how far that is."""

from contextlib import closing

import httpx
import pytest
from fake_backend import TOKEN, Server

from potluck.api.prompts import ChatPrompt, GivenPicture
from potluck.api.values.schema import ListenRequest
from potluck.client import Client
from potluck.front.front import Patience
from potluck.front.server import FrontServer

pytestmark = pytest.mark.net


def test_models_are_listed_as_soon_as_one_is_loaded_and_before_that_how_far_it_is(
    server: Server,
) -> None:
    with closing(FrontServer(ListenRequest(port=0), Patience(new_s=0.05))) as front:
        url = f"http://127.0.0.1:{front.port}/v1/models"
        front.busy("The model is not loaded yet. Loading: 40%.", 0.4)
        before = httpx.get(url, trust_env=False)
        front.ready(Client(server.port, TOKEN))
        after = httpx.get(url, trust_env=False)

    assert before.status_code == 503
    assert before.headers["retry-after"].isdecimal()
    error = before.json()["error"]
    assert (error["code"], error["progress"]) == ("not_ready", 0.4)
    assert "Loading: 40%" in error["message"]
    assert [model["id"] for model in after.json()["data"]] == ["guide"]


def test_a_picture_with_an_address_reaches_the_node_where_the_user_allows_it(
    server: Server,
) -> None:
    async def fetch(address: str, most: int) -> bytes:
        assert most > 0
        return address.encode()

    address = "https://example.org/cat.png"
    content = [{"type": "image_url", "image_url": {"url": address}}]
    with closing(FrontServer(ListenRequest(port=0), fetch=fetch)) as front:
        front.ready(Client(server.port, TOKEN))
        answer = httpx.post(
            f"http://127.0.0.1:{front.port}/v1/chat/completions",
            json={"model": "guide", "messages": [{"role": "user", "content": content}]},
            trust_env=False,
        )

    assert answer.status_code == 200, answer.text
    prompt = server.backend.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.turns[-1].pictures == (GivenPicture(data=address.encode(), at=0),)


def test_the_port_is_free_when_the_front_is_closed() -> None:
    with closing(FrontServer(ListenRequest(port=0))) as front:
        port = front.port
    with closing(FrontServer(ListenRequest(port=port))) as front:
        assert front.port == port
