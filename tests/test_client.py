"""The client against the real server with a fake node behind it."""

import http.server
import socket
import threading
from contextlib import ExitStack

import msgspec
import pytest
from fake_backend import PLAN, TOKEN, Server, computer, serving
from fake_bench import BENCH

from potluck.api.events import Waiting
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.api.values import benching, schema
from potluck.api.values.errors import Error
from potluck.client import Client, NodeGoneError, as_error
from potluck.errors import (
    EngineError,
    NotEnoughMemoryError,
    NotFoundError,
    PotluckError,
    UsageError,
)

pytestmark = pytest.mark.net

HI = ChatCompletionRequest(messages=[ChatMessage(role="user", content="hi")])


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.port, TOKEN)


def test_the_state_and_what_changes_it(server: Server, client: Client) -> None:
    states = client.states("worker")
    first = next(states)
    server.update(computers=(computer("there", "2"),))
    second = next(states)
    states.close()

    assert first.node.name == "here"
    assert [each.name for each in second.computers] == ["there"]
    assert client.state() == second
    assert server.backend.released.wait(30)  # closing lets go of the node


def test_requests_reach_the_node(server: Server, client: Client) -> None:
    server.update(computers=(computer("there", "2", paired=False),))

    pairing = client.pair("there")
    done = client.decide_pairing(pairing.id, accept=True)
    client.connect("10.0.0.9")
    client.forget("2" * 64)
    client.set_role(schema.RoleRequest(worker=True))
    client.unload()
    client.shutdown()

    assert client.health().version == "0.0.test"
    assert done.state == "paired"
    assert client.invite().token == "POT-LUCK"
    assert client.join("T").name == "main"
    assert client.plan(schema.PlanRequest()) == PLAN
    assert [model.name for model in client.models()] == ["guide", "big"]
    assert server.backend.connected == ["10.0.0.9"]
    assert server.backend.forgotten == ["2" * 64]
    assert server.backend.roles[0].worker
    assert server.backend.stopped.is_set()


def test_who_holds_keeps_the_node_until_the_end_and_no_longer(
    server: Server, client: Client
) -> None:
    with client.hold("serve"):
        assert "serve" in server.backend.held
        assert not server.backend.released.is_set()

    assert server.backend.released.wait(30)  # though nothing changed that it would be told of


def test_a_node_that_is_gone_cannot_be_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    with pytest.raises(NodeGoneError), Client(port, TOKEN).hold("serve"):
        pass


def test_who_holds_goes_on_when_the_node_ends() -> None:
    with ExitStack() as running:
        server = running.enter_context(serving())
        with Client(server.port, TOKEN).hold("serve"):
            running.close()


def test_loading_reports_until_it_is_ready(client: Client) -> None:
    seen = list(client.load(schema.PlanRequest()))

    assert [progress.state for progress in seen] == ["planning", "streaming", "streaming", "ready"]
    assert seen[-1].plan == PLAN


def test_a_failed_load_raises_what_the_node_raised(server: Server, client: Client) -> None:
    server.backend.load_error = NotEnoughMemoryError(5_000_000_000, 1_000_000_000)

    with pytest.raises(NotEnoughMemoryError, match=r"4 GB are missing") as caught:
        list(client.load(schema.PlanRequest()))

    assert caught.value.data["needed"] == 5_000_000_000
    assert caught.value.exit_status == 4


def test_a_bench_reports_until_it_has_a_result(server: Server, client: Client) -> None:
    request = benching.BenchRequest(plan=schema.PlanRequest(shape="llama-1b"))

    seen = list(client.bench(request))

    assert [progress.state for progress in seen] == ["loading", "measuring", "ready"]
    assert seen[-1].result == BENCH
    assert server.backend.benched == [request]


def test_a_failed_bench_raises_what_the_node_raised(server: Server, client: Client) -> None:
    server.backend.load_error = NotEnoughMemoryError(5_000_000_000, 1_000_000_000)

    with pytest.raises(NotEnoughMemoryError):
        list(client.bench(benching.BenchRequest(plan=schema.PlanRequest())))


def test_an_answer_streams(client: Client) -> None:
    chunks = list(client.chat(HI))

    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert "".join(text for text in texts if isinstance(text, str)) == "Hello, world."
    assert chunks[-1].usage != msgspec.UNSET
    assert chunks[-1].potluck != msgspec.UNSET


def test_a_prompt_that_waits_hears_its_place(server: Server, client: Client) -> None:
    server.backend.waits = (Waiting(place=2, seconds=9.0),)
    heard: list[str] = []

    list(client.chat(HI, waits=heard.append))

    assert heard == ["waiting, place 2, about 9 s"]


def test_closing_an_answer_cancels_it(server: Server, client: Client) -> None:
    server.backend.endless = True
    answer = client.chat(HI)

    next(answer)
    answer.close()

    assert server.backend.cancelled.wait(30)


def test_an_answer_that_breaks_off_raises(server: Server, client: Client) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")

    with pytest.raises(EngineError, match="Laptop stopped answering"):
        list(client.chat(HI))


def test_an_answer_that_is_refused_raises(server: Server, client: Client) -> None:
    server.backend.fails_before = EngineError("No.")

    with pytest.raises(EngineError, match="No"):
        list(client.chat(HI))


def test_what_only_the_server_refuses_is_a_usage_error(client: Client) -> None:
    with pytest.raises(UsageError, match="workers"):
        client.plan(schema.PlanRequest(workers=1000))
    with pytest.raises(UsageError, match="top_p"):
        list(client.chat(msgspec.structs.replace(HI, top_p=7.0)))
    with pytest.raises(NotFoundError, match="nobody"):
        client.pair("nobody")


def test_a_wrong_token_is_told(server: Server) -> None:
    with pytest.raises(UsageError, match="key"):
        Client(server.port, "wrong").state()


def test_no_node_at_all_is_told() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(unused.getsockname()[1], "x")

        with pytest.raises(NodeGoneError, match="ended"):
            client.state()
        with pytest.raises(NodeGoneError, match="ended"):
            next(client.states())


def test_a_node_that_hangs_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = Client(mute.getsockname()[1], "x")

        with pytest.raises(NodeGoneError, match="does not answer"):
            client.health(timeout_s=0.05)


class Nonsense(http.server.BaseHTTPRequestHandler):
    """Some other program on the port, or a stream that ends too early."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/cluster" else 502)
        self.end_headers()
        self.wfile.write(b"<html>")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b": nothing\n\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        pass


def test_answers_that_are_none_of_ours_are_told() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Nonsense) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,))
        thread.start()
        client = Client(other.server_port, "x")
        try:
            with pytest.raises(NodeGoneError, match="version"):
                client.state()
            with pytest.raises(NodeGoneError, match="502"):
                client.health()
            with pytest.raises(NodeGoneError, match="while it loaded"):
                list(client.load(schema.PlanRequest()))
            with pytest.raises(NodeGoneError, match="middle of the answer"):
                list(client.chat(HI))
        finally:
            other.shutdown()
            thread.join()


def test_an_unknown_code_is_the_plain_error() -> None:
    error = as_error(Error(code="from_the_future", message="Odd.", data={"a": 1}))

    assert type(error) is PotluckError
    assert (error.message, error.data) == ("Odd.", {"a": 1})
