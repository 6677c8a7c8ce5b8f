"""Answers that go on when the node of this computer is lost."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from fake_backend import TOKEN, Server, serving

from potluck.api.v1.answer_shapes import ChatChunk
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.cli.answering import Answering
from potluck.client import Client, NodeGoneError
from potluck.errors import ClosedError, EngineError, PotluckError

pytestmark = pytest.mark.net

ASKED = ChatCompletionRequest(messages=[ChatMessage(role="user", content="Hi")])
Again = Callable[[PotluckError], Client | None]


@pytest.fixture
def second() -> Iterator[Server]:
    """The node that is started when the first one is lost."""
    with serving() as running:
        yield running


def answering(server: Server, again: Again, loaded: list[int] | None = None) -> Answering:
    loaded = [] if loaded is None else loaded
    client = Client(server.port, TOKEN)
    return Answering(client, again=again, load=lambda client: loaded.append(client.port))


def texts(chunks: list[ChatChunk]) -> list[str]:
    contents = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    return [text for text in contents if isinstance(text, str) and text]


def test_an_answer_goes_on_with_the_next_node_after_the_tokens_that_came(
    server: Server, second: Server
) -> None:
    server.backend.script = ("a", "b")
    server.backend.fails_after = ClosedError("Potluck stops.")
    second.backend.script = ("c", "d")
    loaded: list[int] = []

    chunks = list(answering(server, lambda lost: Client(second.port, TOKEN), loaded).chat(ASKED))

    assert texts(chunks) == ["a", "c", "d"]
    assert loaded == [second.port]
    first, then = *server.backend.generated, *second.backend.generated
    assert (first.known, then.known) == ((), (100,))
    assert first.sampling.seed == then.sampling.seed is not None
    assert (first.model, then.model) == (None, "guide")


def test_an_answer_whose_node_is_not_started_again_ends_with_how_it_was_lost(
    server: Server,
) -> None:
    server.backend.fails_after = ClosedError("Potluck stops.")

    with pytest.raises(ClosedError, match="Potluck stops"):
        list(answering(server, lambda lost: None).chat(ASKED))


def test_an_answer_that_ends_one_node_after_the_other_is_given_up(server: Server) -> None:
    server.backend.fails_after = ClosedError("Potluck stops.")
    nodes = [Client(server.port, TOKEN), Client(server.port, TOKEN)]

    def again(lost: PotluckError) -> Client:
        if not nodes:
            raise lost
        return nodes.pop()

    with pytest.raises(ClosedError):
        list(answering(server, again).chat(ASKED))

    assert [request.known for request in server.backend.generated] == [(), (100,), (100, 100)]


def test_a_node_that_is_lost_while_it_loads_the_model_has_a_successor_too(
    server: Server, second: Server
) -> None:
    server.backend.fails_after = ClosedError("Potluck stops.")
    loads = iter([NodeGoneError("It ended."), None])

    def load(client: Client) -> None:
        if (error := next(loads)) is not None:
            raise error

    client = Client(server.port, TOKEN)
    again = Answering(client, again=lambda lost: Client(second.port, TOKEN), load=load)

    assert texts(list(again.chat(ASKED)))[-1] == "."


def test_an_error_of_the_answer_itself_is_told_and_not_tried_again(server: Server) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")

    with pytest.raises(EngineError):
        list(answering(server, lambda lost: pytest.fail("It was asked again.")).chat(ASKED))


def test_closing_an_answer_cancels_it(server: Server) -> None:
    server.backend.endless = True

    with closing(answering(server, lambda lost: None).chat(ASKED)) as chunks:
        next(chunks)

    assert server.backend.cancelled.wait(30)
