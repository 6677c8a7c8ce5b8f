"""Bodies that are read, and errors that become answers."""

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from potluck.api.http import endpoint
from potluck.api.http.endpoint import (
    Endpoint,
    RequestError,
    decode,
    describe,
    openai_error,
    refuse,
    status_of,
)
from potluck.api.http.streams import ClientGoneError
from potluck.api.v1.request_shapes import MAX_TOKENS, ChatCompletionRequest, CompletionRequest
from potluck.errors import (
    BusyError,
    NotEnoughMemoryError,
    NotFoundError,
    PeerLostError,
    PotluckError,
    TooManyRequestsError,
    UsageError,
)


class Inner(msgspec.Struct):
    count: int


class Body(msgspec.Struct):
    name: str
    inner: Inner | None = None
    many: list[Inner] = []


@pytest.mark.parametrize(
    ("body", "param", "sentence"),
    [
        (b'{"name": 5}', "name", "name: expected `str`, got `int`."),
        (b'{"name": "a", "inner": {"count": "x"}}', "inner.count", "got `str`"),
        (b'{"name": "a", "inner": {}}', "inner.count", "inner.count: this field is required."),
        (b'{"name": "a", "many": [{"count": 1}, {}]}', "many[1].count", "required"),
        (b"{}", "name", "name: this field is required."),
        (b"[]", None, "expected `object`"),
        (b'{"name": ', None, "not valid JSON"),
        (b"\xff", None, "not valid JSON"),
        (b"[" * 100_000, None, "expected `object`|not valid JSON"),
    ],
)
def test_a_body_that_does_not_fit_names_the_field(
    body: bytes, param: str | None, sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        decode(body, Body)

    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("field", ["tools", "functions", "logit_bias"])
def test_a_field_that_is_refused_is_not_decoded(field: str) -> None:
    """Five million small objects took the event loop a second."""
    value = b"[{}, {}]"
    body = b'{"messages": [{"role": "user", "content": "x"}], "%s": %s}' % (field.encode(), value)

    request = decode(body, ChatCompletionRequest)

    assert getattr(request, field) == msgspec.Raw(value)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError(413, "large"), 413, "invalid_request_error"),
        (RequestError(401, "key"), 401, "authentication_error"),
        (NotFoundError("nobody"), 404, "invalid_request_error"),
        (TooManyRequestsError("wait"), 429, "invalid_request_error"),
        (UsageError("so not"), 400, "invalid_request_error"),
        (NotEnoughMemoryError(2, 1), 409, "invalid_request_error"),
        (BusyError("lent"), 409, "invalid_request_error"),
        (PeerLostError("gone"), 503, "server_error"),
        (RuntimeError("secret"), 500, "server_error"),
    ],
)
def test_every_error_has_a_status_and_a_kind(error: Exception, status: int, kind: str) -> None:
    body = openai_error(error).error

    assert status_of(error) == status
    assert body.type == kind
    assert refuse(error).status_code == status


def test_an_error_of_ours_brings_its_code_sentence_and_data() -> None:
    described = describe(NotEnoughMemoryError(5_000_000_000, 1_000_000_000))

    assert described.code == "not_enough_memory"
    assert described.data["needed"] == 5_000_000_000


def test_a_fault_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    described = describe(RuntimeError("the prompt was: my secret"))

    assert described.code == "internal"
    assert "secret" not in described.message
    assert "RuntimeError" in caplog.text


def test_the_wrong_field_is_told_where_openais_clients_look() -> None:
    error = RequestError(400, "top_p: too large.", param="top_p")

    assert openai_error(error).error.param == "top_p"


class Client:
    """One request over ASGI, and what it was answered."""

    def __init__(self, *chunks: bytes) -> None:
        self._incoming: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def ask(self, handler: Callable[[Request], Any]) -> tuple[int, Any] | None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        app = Endpoint(handler, refuse, nullcontext)
        asyncio.run(app(scope, self.receive, self.send))
        if not self.sent:
            return None
        body = b"".join(message.get("body", b"") for message in self.sent)
        return self.sent[0]["status"], json.loads(body) if body else None


async def echo(request: Request) -> Response:
    return endpoint.JsonResponse(await endpoint.read(request, Body))


def test_a_body_in_pieces_is_one_body() -> None:
    assert Client(b'{"na', b'me": "a"', b"}").ask(echo) == (
        200,
        {"name": "a", "inner": None, "many": []},
    )


def test_a_body_beyond_the_limit_is_not_read_to_its_end() -> None:
    client = Client(*[b" " * (1 << 20)] * 40)
    answer = client.ask(echo)

    assert answer is not None
    assert answer[0] == 413
    assert len(client._incoming) == 40 - 17


def test_a_body_of_millions_of_values_is_not_decoded() -> None:
    """16 MB of empty lists took the event loop two seconds."""
    answer = Client(b'{"name": [', b"[]," * (endpoint.MAX_COMMAS + 1), b"[]]}").ask(echo)

    assert answer is not None
    assert answer[0] == 413
    assert "more values than" in answer[1]["error"]["message"]


def test_a_prompt_as_long_as_any_context_is_decoded() -> None:
    ids = b",".join([b"1"] * MAX_TOKENS)

    async def count(request: Request) -> Response:
        asked = await endpoint.read(request, CompletionRequest)
        return endpoint.JsonResponse(len(asked.prompt))

    assert Client(b'{"prompt": [', ids, b"]}").ask(count) == (200, MAX_TOKENS)


def test_a_handler_that_fails_is_a_sentence() -> None:
    async def fail(request: Request) -> Response:
        raise PotluckError("It is as it is.")

    assert Client().ask(fail) == (
        500,
        {"error": {"code": "error", "message": "It is as it is.", "data": {}}},
    )


def test_nobody_is_answered_who_is_gone() -> None:
    async def leave(request: Request) -> Response:
        raise ClientGoneError

    assert Client().ask(leave) is None


def test_the_node_is_held_until_the_answer_is_sent() -> None:
    held: list[str] = []

    class Hold:
        def __enter__(self) -> None:
            held.append("held")

        def __exit__(self, *error: object) -> None:
            held.append("let go")

    async def answer(request: Request) -> Response:
        held.append("answered")
        return Response()

    client = Client()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(Endpoint(answer, refuse, Hold)(scope, client.receive, client.send))

    assert held == ["held", "answered", "let go"]
