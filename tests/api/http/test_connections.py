"""How many connections there are at once, how long they may be silent, and how bodies are parsed."""

import asyncio
from contextlib import suppress

import httpx
import pytest
from fake_backend import TOKEN, FakeBackend
from uvicorn.protocols.http.h11_impl import H11Protocol

from potluck.api.http.connections import PIECE, Places
from potluck.api.http.listener import HttpServer
from potluck.api.server import local_app, public_app

pytestmark = pytest.mark.net


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def test_connections_that_ask_nothing_do_not_keep_others_out() -> None:
    """Neither those without a key, nor those whose headers do not end."""

    async def scenario() -> list[int]:
        app = public_app(FakeBackend(), host="0.0.0.0", key="a-key-that-is-long")
        server = HttpServer(Places(most=8))
        port = await server.start(app, "127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in silent:
            writer.write(b"GET /v1/models HTTP/1.1\r\nX-Slow: ")
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False
            ) as client:
                key = {"authorization": "bearer a-key-that-is-long"}
                return [(await client.get("/v1/models", headers=key)).status_code for _ in range(2)]
        finally:
            await hang_up(*(writer for _, writer in silent))
            await server.stop()

    assert asyncio.run(scenario()) == [200, 200]


def test_the_first_connections_beyond_the_limit_are_closed_and_one_with_a_request_is_not() -> None:
    async def scenario() -> tuple[bytes, bool]:
        server = HttpServer(Places(most=2))
        port = await server.start(local_app(FakeBackend(), TOKEN), "127.0.0.1", 0)
        events, ask = await asyncio.open_connection("127.0.0.1", port)
        ask.write(
            f"GET /cluster/events HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        await events.readuntil(b"\r\n\r\n")
        first, one = await asyncio.open_connection("127.0.0.1", port)
        second, other = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):  # it was reset
            assert await first.read() == b""
        still_there = not events.at_eof() and not second.at_eof()
        line = await events.readline()
        await server.stop()
        await hang_up(ask, one, other)
        return line, still_there

    line, still_there = asyncio.run(scenario())

    assert line
    assert still_there


def test_a_connection_that_asks_nothing_ends_after_a_while() -> None:
    async def scenario() -> None:
        server = HttpServer(Places(idle_s=0.05))
        port = await server.start(local_app(FakeBackend(), TOKEN), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\n")
        with suppress(ConnectionError):
            async with asyncio.timeout(30):
                assert await reader.read() == b""
        await hang_up(writer)
        await server.stop()

    asyncio.run(scenario())


def test_a_body_of_tiny_chunks_is_parsed_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them took the event loop 0.9 seconds at a time."""
    sizes: list[int] = []
    parse = H11Protocol.data_received

    def note(self: H11Protocol, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", note)
    body = b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n"

    answer = asyncio.run(post(body, f"Authorization: Bearer {TOKEN}\r\n"))

    assert answer.startswith(b"HTTP/1.1 400 ")  # spaces are no JSON
    assert sum(sizes) > len(body)
    assert max(sizes) <= PIECE


def test_a_body_that_is_refused_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender gets the answer, and the connection ends."""
    sizes: list[int] = []
    parse = H11Protocol.data_received

    def note(self: H11Protocol, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", note)

    answer = asyncio.run(post(b"1\r\n \r\n" * 100_000, "Authorization: Bearer wrong\r\n"))

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert sum(sizes) <= 4 * PIECE


async def post(body: bytes, headers: str) -> bytes:
    """What the server answers to a chunked body, until it ends the connection or is silent."""
    server = HttpServer(Places(idle_s=0.5))
    port = await server.start(local_app(FakeBackend(), TOKEN), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        + f"{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
        + body
    )
    answer = await reader.readuntil(b"\r\n\r\n")
    with suppress(ConnectionError):
        await reader.read()
    await hang_up(writer)
    await server.stop()
    return answer
