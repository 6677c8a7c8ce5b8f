"""Event streams without a server: ASGI messages in and out."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message

from potluck.api.http.streams import ClientGoneError, EventStream, until_disconnect
from potluck.errors import ClosedError


class Client:
    """The other end of an ASGI application."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self.stops = False  # whether it is the server that ends the connection
        self.got = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect", "stops": self.stops}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.got.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def refuse(error: Exception) -> Response:
    return PlainTextResponse(f"refused: {error}", 418)


async def call(stream: EventStream, client: Client) -> None:
    async with asyncio.timeout(30):
        await stream({"type": "http"}, client.receive, client.send)


def test_silence_is_filled_with_comments() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"1"
        while client.body.count(b": still here") < 2:
            client.got.clear()
            await client.got.wait()
        yield b"2"

    async def scenario() -> None:
        await call(EventStream(events(), refuse, heartbeat_s=0.01), client)

    client = Client()
    asyncio.run(scenario())

    assert client.body.startswith(b"data: 1\n\n: still here\n\n: still here\n\n")
    assert client.body.endswith(b"data: 2\n\n")
    assert client.sent[-1]["more_body"] is False


def test_an_error_before_the_first_item_is_refused_with_a_status() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        raise ValueError("no")
        yield b""

    client = Client()
    asyncio.run(call(EventStream(events(), refuse), client))

    assert client.sent[0]["status"] == 418
    assert client.body == b"refused: no"


def test_an_error_after_it_is_raised() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"1"
        raise ValueError("late")

    client = Client()
    with pytest.raises(ValueError, match="late"):
        asyncio.run(call(EventStream(events(), refuse), client))


def test_no_items_are_an_empty_stream() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        return
        yield b""

    client = Client()
    asyncio.run(call(EventStream(events(), refuse), client))

    assert client.sent[0]["status"] == 200
    assert client.body == b""


def test_the_generator_may_hold_a_time_limit_open_while_it_yields() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        async with asyncio.timeout(30):
            yield b"1"
            await asyncio.sleep(0)
            yield b"2"

    client = Client()
    asyncio.run(call(EventStream(events(), refuse), client))

    assert client.body == b"data: 1\n\ndata: 2\n\n"


def test_a_client_that_leaves_closes_the_generator() -> None:
    closed: list[str] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            client.gone.set()
            await asyncio.Event().wait()
        finally:
            closed.append("yes")

    async def scenario() -> None:
        await call(EventStream(events(), refuse), client)
        assert closed == ["yes"]

    client = Client()
    asyncio.run(scenario())


@pytest.mark.parametrize("last_words", [None, lambda error: b"sorry"])
def test_a_server_that_stops_ends_its_streams_properly(
    last_words: Callable[[Exception], bytes] | None,
) -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"1"
        client.stops = True
        client.gone.set()
        await asyncio.Event().wait()

    client = Client()
    asyncio.run(call(EventStream(events(), refuse, last_words=last_words), client))

    assert client.body == b"data: 1\n\n" + (b"data: sorry\n\n" if last_words else b"")
    assert client.sent[-1]["more_body"] is False


def test_a_server_that_stops_before_the_first_item_refuses() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        client.stops = True
        client.gone.set()
        await asyncio.Event().wait()
        yield b"1"

    client = Client()
    asyncio.run(call(EventStream(events(), refuse), client))

    assert client.body.startswith(b"refused: Potluck stopped serving")


def test_work_is_cancelled_when_the_server_stops() -> None:
    client = Client()
    client.stops = True
    client.gone.set()

    with pytest.raises(ClosedError):
        asyncio.run(until_disconnect(client.receive, asyncio.sleep(60)))


def test_work_is_cancelled_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def work() -> None:
        client.gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")

    async def scenario() -> None:
        with pytest.raises(ClientGoneError):
            await until_disconnect(client.receive, work())
        assert ended == ["yes"]

    client = Client()
    asyncio.run(scenario())


def test_work_that_ends_is_answered() -> None:
    async def work() -> Any:
        return 7

    async def scenario() -> Any:
        return await until_disconnect(Client().receive, work())

    assert asyncio.run(scenario()) == 7
