"""Where a listener listens, and how it ends."""

import asyncio
import signal
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from fake_backend import TOKEN, FakeBackend

from potluck.api.http.endpoint import MAX_BODY
from potluck.api.http.listener import HttpServer, is_loopback_host
from potluck.api.http.taken import Listens
from potluck.api.server import local_app, public_app
from potluck.errors import UsageError
from potluck.net.identity import Identity

pytestmark = pytest.mark.net


def test_a_public_listener_beyond_loopback_needs_a_key() -> None:
    backend = asyncio.run(make_backend())

    with pytest.raises(UsageError, match="potluck keys add"):
        public_app(backend, host="0.0.0.0", key=None)


async def make_backend() -> FakeBackend:
    return FakeBackend()


def test_loopback_hosts() -> None:
    hosts = ["localhost", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::", "10.0.0.1", "x", ""]

    assert [is_loopback_host(host) for host in hosts] == [True] * 4 + [False] * 5


def test_a_taken_port_is_told_in_a_sentence() -> None:
    async def scenario(port: int) -> None:
        await HttpServer().start(local_app(FakeBackend(), TOKEN), "127.0.0.1", port)

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port: int = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} is taken by another program"):
            asyncio.run(scenario(port))


@pytest.mark.parametrize(
    ("name", "who"),
    [(Listens.SERVE, "another `potluck serve`"), (Listens.NODE, "Potluck's window")],
)
def test_a_port_that_potluck_itself_has_is_told_as_such(name: Listens, who: str) -> None:
    async def scenario() -> None:
        app = public_app(FakeBackend(), host="127.0.0.1", key="a-key-that-is-long")
        server = HttpServer(name=name)
        port = await server.start(app, "127.0.0.1", 0)
        try:
            with pytest.raises(UsageError, match=f"Port {port} is taken by {who}"):
                await HttpServer().start(app, "127.0.0.1", port)
        finally:
            await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_told(host: str) -> None:
    async def scenario() -> None:
        await HttpServer().start(local_app(FakeBackend(), TOKEN), host, 0)

    with pytest.raises(UsageError, match="no address of this computer"):
        asyncio.run(scenario())


def test_signals_stay_the_nodes_and_stopping_ends_streams() -> None:
    async def scenario() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGINT)
        server = HttpServer()
        port = await server.start(local_app(FakeBackend(), TOKEN), "localhost", 0)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False
            ) as client,
            client.stream("GET", "/cluster/events") as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            ours = signal.getsignal(signal.SIGINT) is before
            began = loop.time()
            await server.stop()
            await server.stop()  # a second one is nothing
            return ours, loop.time() - began

    ours, seconds = asyncio.run(scenario())

    assert ours
    assert seconds < 1.5  # streams ended by themselves, before the shutdown's limit of 2 s


def test_a_listener_with_a_certificate_of_the_home_is_encrypted(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "identity", "Desk")
    home = identity.create_home("Desk")
    (tmp_path / "serve.pem").write_bytes(
        identity.issue_server(["desk.local", "localhost"], [ip_address("127.0.0.1")])
    )
    (tmp_path / "home.pem").write_bytes(home.ca_pem)

    async def scenario() -> None:
        app = public_app(FakeBackend(), host="127.0.0.1", key=None)
        server = HttpServer()
        port = await server.start(app, "127.0.0.1", 0, certificate=tmp_path / "serve.pem")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "home.pem"))
        for host in ("127.0.0.1", "localhost"):
            url = f"https://{host}:{port}/v1/completions"
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as http:
                answer = await http.post(url, json={"prompt": "hi"})
                assert answer.status_code == 200, answer.text
                # Refused before it was read.
                large = await http.post(url, content=b" " * (MAX_BODY + 1))
                assert large.status_code == 413
        async with httpx.AsyncClient(trust_env=False) as http:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get(f"https://127.0.0.1:{port}/health")
        await server.stop()

    asyncio.run(scenario())
