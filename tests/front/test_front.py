"""The front, before fake nodes that are lost and come back."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pytest
from fake_backend import TOKEN, Server, serving
from msgspec.structs import replace

from potluck.api.events import Finished, GenerationEvent, Piece
from potluck.api.prompts import GenerationRequest, TextPrompt, TokensRequest
from potluck.client import Client, NodeGoneError
from potluck.errors import ClosedError, NotReadyError, PromptError
from potluck.front.front import Front, Patience

pytestmark = pytest.mark.net

ASKED = GenerationRequest(prompt=TextPrompt("Hi"), id="one")
PATIENCE = Patience(new_s=0.05, begun_s=5.0, retry_s=0.0)


@pytest.fixture
def second() -> Iterator[Server]:
    """The node that is started when the first one is lost."""
    with serving() as running:
        yield running


def node(server: Server) -> Client:
    return Client(server.port, TOKEN)


def front_of(server: Server) -> Front:
    front = Front(PATIENCE)
    front.ready(node(server))
    return front


async def take(events: AsyncGenerator[GenerationEvent, None], count: int) -> list[str]:
    """The texts of the next pieces."""
    texts: list[str] = []
    while len(texts) < count:
        event = await anext(events)
        if isinstance(event, Piece):
            texts.append(event.text)
    return texts


async def whole(front: Front, request: GenerationRequest = ASKED) -> list[GenerationEvent]:
    async with aclosing(front.generate(request)) as events:
        return [event async for event in events]


def test_an_answer_goes_on_with_the_next_node_after_the_tokens_that_were_sent(
    server: Server, second: Server
) -> None:
    async def main() -> None:
        server.backend.script, server.backend.endless = ("a", "b"), True
        second.backend.script = ("c",)
        front = front_of(server)
        async with aclosing(front.generate(ASKED)) as events:
            assert await take(events, 2) == ["a", "b"]
            front.busy("The node was lost.")
            front.ready(node(second))
            assert await take(events, 1) == ["c"]
            assert isinstance(await anext(events), Finished)

    asyncio.run(main())
    assert [request.known for request in second.backend.generated] == [(100, 101)]


def test_a_node_that_stops_is_a_node_that_was_lost(server: Server, second: Server) -> None:
    async def main() -> None:
        server.backend.fails_after = ClosedError("Potluck was closed.")
        front = front_of(server)
        async with aclosing(front.generate(ASKED)) as events:
            await take(events, 1)
            going_on = asyncio.create_task(take(events, 1))
            front.busy("The node was lost.")
            front.ready(node(second))
            await going_on

    asyncio.run(main())
    assert [request.known for request in second.backend.generated] == [(100,)]


def test_an_answer_that_ends_one_node_after_the_other_is_given_up(server: Server) -> None:
    server.backend.fails_before = ClosedError("Potluck was closed.")

    with pytest.raises(NodeGoneError):
        asyncio.run(whole(front_of(server)))

    assert len(server.backend.generated) == PATIENCE.losses


def test_an_error_of_the_answer_itself_is_told_and_not_tried_again(server: Server) -> None:
    server.backend.fails_before = PromptError("The prompt is too long.")

    with pytest.raises(PromptError, match="too long"):
        asyncio.run(whole(front_of(server)))

    assert len(server.backend.generated) == 1


def test_tokens_come_from_the_node(server: Server) -> None:
    async def main() -> None:
        wanted = TokensRequest(prompt=TextPrompt("Hi", special=False))
        found = await front_of(server).tokens(wanted)
        assert (found.token_ids, found.text) == ((72, 105), "Hi")

    asyncio.run(main())


def test_without_a_node_there_are_no_tokens() -> None:
    front = Front(PATIENCE)
    front.ready(Client(1, TOKEN))  # nothing listens there

    with pytest.raises(NodeGoneError):
        asyncio.run(front.tokens(TokensRequest(prompt=TextPrompt("Hi"))))


def test_without_a_node_a_request_is_told_what_happens_meanwhile() -> None:
    front = Front(PATIENCE)
    front.busy("The model is not loaded yet. Loading: 40%.", 0.4)

    with pytest.raises(NotReadyError, match="Loading: 40%") as error:
        asyncio.run(whole(front))
    assert error.value.data == {"progress": 0.4}


def test_the_same_request_goes_on_where_its_connection_broke(server: Server) -> None:
    async def main() -> list[GenerationEvent]:
        server.backend.endless = True
        front = front_of(server)
        async with aclosing(front.generate(ASKED)) as events:
            before = await take(events, 4)
        server.backend.script, server.backend.endless = (), False
        again = await whole(front)
        assert [event.text for event in again if isinstance(event, Piece)] == before
        return again

    again = asyncio.run(main())
    assert isinstance(again[-1], Finished)
    assert server.backend.generated[-1].known == (100, 101, 102, 103)


def test_an_answer_that_is_complete_is_not_computed_again(server: Server) -> None:
    async def main() -> None:
        front = front_of(server)
        assert await whole(front) == await whole(front)

    asyncio.run(main())
    assert len(server.backend.generated) == 1


def test_an_answer_goes_on_after_tokens_that_its_program_has(
    server: Server, second: Server
) -> None:
    async def main() -> None:
        server.backend.script, server.backend.endless = ("a",), True
        front = front_of(server)
        async with aclosing(front.generate(replace(ASKED, known=(7, 8)))) as events:
            await take(events, 1)
            front.busy("The node was lost.")
            front.ready(node(second))
            await take(events, 1)

    asyncio.run(main())
    assert [request.known for request in server.backend.generated] == [(7, 8)]
    assert [request.known for request in second.backend.generated] == [(7, 8, 100)]
