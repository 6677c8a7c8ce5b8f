"""The door: who may talk, and the listener inside a running loop."""

import asyncio
import http.client
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import TOKEN, FakeBackend, Server
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.http.endpoint import refuse
from potluck.api.http.listener import Guard, HttpServer
from potluck.api.server import public_app
from potluck.api.values.schema import ServedModel
from potluck.errors import UsageError
from potluck.ids import Right
from potluck.program_keys import ProgramKeys

pytestmark = pytest.mark.net


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/health", "/cluster", "/cluster/events", "/v1/models", "/x"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", "Bearer ü"])
def test_nothing_is_answered_without_the_key(server: Server, path: str, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}

    status, body = get(server, path, **headers)

    assert status == 401
    assert "Authorization" in body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:8000", "127.8.9.1"]
)
def test_loopback_names_are_answered(server: Server, host: str) -> None:
    status, _ = get(server, "/health", Host=host, Authorization=f"Bearer {TOKEN}")

    assert status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
        "[",
        "[::2]",
        "0.0.0.0",
    ],
)
def test_a_rebound_name_is_refused_even_with_the_key(server: Server, host: str) -> None:
    status, _ = get(server, "/health", Host=host, Authorization=f"Bearer {TOKEN}")

    assert status in (400, 403)  # h11 itself refuses what is no host at all


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example"]
)
def test_pages_of_other_sites_are_refused(server: Server, origin: str) -> None:
    status, _ = get(server, "/health", Origin=origin, Authorization=f"Bearer {TOKEN}")

    assert status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_a_browser_sends_for_a_page_is_refused(server: Server, site: str) -> None:
    """A page from another port of this computer is `same-site`."""
    key = f"Bearer {TOKEN}"

    origin, _ = get(server, "/health", Origin="http://localhost:3000", Authorization=key)
    fetch, _ = get(server, "/health", Sec_Fetch_Site=site, Authorization=key)
    typed, _ = get(server, "/health", Sec_Fetch_Site="none", Authorization=key)

    assert (origin, fetch, typed) == (403, 403, 200)


async def ask_public(
    headers: dict[str, str], method: str = "GET", path: str = "/v1/models", **options: Any
) -> Any:
    """The answer of a listener without a key to one request."""
    app = public_app(FakeBackend(), host="127.0.0.1", key=None, **options)
    server = HttpServer()
    port = await server.start(app, "127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            return await http.request(method, path, headers=headers)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost:8001"},
        {"origin": "null"},
        {"origin": "https://app.example", "sec-fetch-site": "none"},
        {"origin": "http://tauri.localhost.evil.example"},
        {"sec-fetch-site": "same-site"},
        {"host": "rebound.example"},
    ],
)
def test_no_page_uses_a_listener_without_a_key(headers: dict[str, str]) -> None:
    answer = asyncio.run(ask_public(headers, origins=["http://localhost:8000"]))

    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_a_listed_origin_uses_a_listener_without_a_key() -> None:
    page = {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}
    asked = page | {"access-control-request-method": "POST"}

    async def scenario() -> list[Any]:
        origins = ["http://localhost:3000"]
        return [
            await ask_public(page, origins=origins),
            await ask_public(asked, "OPTIONS", origins=origins),
        ]

    for answer in asyncio.run(scenario()):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "http://localhost:3000/", "*", "null", "http://Localhost"]
)
def test_what_is_no_origin_is_not_listed(origin: str) -> None:
    backend = asyncio.run(make_backend())

    with pytest.raises(UsageError, match="no origin"):
        public_app(backend, host="127.0.0.1", key=None, origins=[origin])


def test_another_user_of_the_computer_needs_the_key() -> None:
    ends: list[object] = []

    def is_own(client: object, server: object) -> bool:
        ends.extend((client, server))
        return False

    async def status(key: str | None, **headers: str) -> int:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await Response()(scope, receive, send)

        guard = Guard(answer, key=key, loopback=True, refuse=lambda _: refuse, is_own=is_own)
        transport = httpx.ASGITransport(guard, client=("127.0.0.1", 7))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/v1/models", headers=headers)).status_code

    assert asyncio.run(status(None)) == 403
    assert ends[0] == ("127.0.0.1", 7)
    assert asyncio.run(status("its-key", authorization="Bearer its-key")) == 200


def test_v1_refuses_in_openais_shape(server: Server) -> None:
    _, body = get(server, "/v1/models")

    assert '"type":"authentication_error"' in body


async def make_backend() -> FakeBackend:
    return FakeBackend()


@pytest.mark.parametrize(
    "origin",
    ["app://obsidian.md", "vscode-webview://1a2b", "tauri://localhost", "http://tauri.localhost"],
)
def test_the_pages_of_apps_use_a_listener(origin: str) -> None:
    page = {"origin": origin, "sec-fetch-site": "cross-site"}
    asked = page | {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-api-key, x-stainless-os",
    }

    async def scenario() -> list[Any]:
        return [await ask_public(page), await ask_public(asked, "OPTIONS")]

    answer, preflight = asyncio.run(scenario())
    assert (answer.status_code, preflight.status_code) == (200, 200)
    assert answer.headers["access-control-allow-origin"] == origin
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert "DELETE" in preflight.headers["access-control-allow-methods"]  # of a stored response


def test_the_version_in_the_address_may_be_missing() -> None:
    async def scenario() -> list[int]:
        paths = ("/models", "/models/guide", "/modelsx", "/")
        return [(await ask_public({}, path=path)).status_code for path in paths]

    assert asyncio.run(scenario()) == [200, 200, 404, 200]


def test_a_page_without_an_origin_needs_the_key() -> None:
    """A file, or a frame of any website: the browser calls both null."""

    async def scenario() -> list[int]:
        key = "a-key-that-is-long"
        app = public_app(FakeBackend(), host="127.0.0.1", key=key)
        server = HttpServer()
        port = await server.start(app, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}/v1/models"
        async with httpx.AsyncClient(trust_env=False) as http:
            statuses = [
                (await http.get(url, headers={"origin": "null", "x-api-key": given})).status_code
                for given in (key, "another")
            ]
        await server.stop()
        return statuses

    assert asyncio.run(scenario()) == [200, 401]


def test_programs_in_containers_use_a_listener_by_the_name_that_they_know() -> None:
    answer = asyncio.run(ask_public({"host": "host.docker.internal:8000"}))
    assert answer.status_code == 200


def test_a_public_listener_with_a_key_answers_any_name() -> None:
    async def scenario() -> list[int]:
        app = public_app(FakeBackend(), host="0.0.0.0", key="a-key-that-is-long")
        server = HttpServer()
        port = await server.start(app, "127.0.0.1", 0)
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False
            ) as client:
                host = {"host": "attic.local"}
                without = await client.get("/v1/models", headers=host)
                key = {"authorization": "bearer a-key-that-is-long"}
                with_key = await client.get("/v1/models", headers=host | key)
            return [without.status_code, with_key.status_code]
        finally:
            await server.stop()

    assert asyncio.run(scenario()) == [401, 200]


def test_an_address_with_many_wrong_keys_waits_and_others_do_not() -> None:
    async def scenario() -> list[int]:
        app = public_app(FakeBackend(), host="0.0.0.0", key="a-key-that-is-long")

        async def status(host: str, key: str) -> int:
            transport = httpx.ASGITransport(app, client=(host, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://attic") as client:
                headers = {"authorization": f"Bearer {key}"}
                answer = await client.get("/v1/models", headers=headers)
                assert (answer.status_code == 429) == ("retry-after" in answer.headers)
                return answer.status_code

        guesses = [await status("192.168.0.66", f"guess-{n}") for n in range(12)]
        right = [
            await status(host, "a-key-that-is-long") for host in ("192.168.0.66", "192.168.0.7")
        ]
        here = [await status("127.0.0.1", f"guess-{n}") for n in range(12)]
        return [*guesses, *right, here[-1], await status("127.0.0.1", "a-key-that-is-long")]

    assert asyncio.run(scenario()) == [401] * 10 + [429] * 2 + [429, 200] + [401, 200]


OTHER = ServedModel(name="other", created=1)


@pytest.mark.parametrize(
    ("may", "statuses"),
    [
        (("ask",), {"/v1/models": 200, "loaded": 200, "other": 403, "/metrics": 403}),
        (("ask", "load"), {"/v1/models": 200, "loaded": 200, "other": 200, "/metrics": 403}),
        (("metrics",), {"/v1/models": 403, "loaded": 403, "other": 403, "/metrics": 200}),
    ],
)
def test_a_programs_key_says_what_the_program_may_do(
    tmp_path: Path, may: tuple[Right, ...], statuses: dict[str, int]
) -> None:
    keys = ProgramKeys(tmp_path / "keys.json", tmp_path / "uses.json")
    key = keys.add("notes", may)

    async def scenario() -> dict[str, int]:
        backend = FakeBackend()
        loaded = replace(backend.current.served[0], is_loaded=True)
        backend.update(served=(loaded, OTHER))
        app = public_app(backend, host="0.0.0.0", key=None, programs=keys)
        server = HttpServer()
        port = await server.start(app, "127.0.0.1", 0)
        headers = {"authorization": f"Bearer {key}"}
        found: dict[str, int] = {}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False
        ) as http:
            for path in ("/v1/models", "/metrics"):
                found[path] = (await http.get(path)).status_code
            for name, model in (("loaded", loaded.name), ("other", OTHER.name)):
                body = {"model": model, "prompt": "hi"}
                found[name] = (await http.post("/v1/completions", json=body)).status_code
            keys.revoke("notes")
            assert (await http.get("/v1/models")).status_code == 401
        await server.stop()
        return found

    assert asyncio.run(scenario()) == statuses


def test_on_this_computer_a_key_is_needed_by_nobody_but_its_rights_count(tmp_path: Path) -> None:
    keys = ProgramKeys(tmp_path / "keys.json", tmp_path / "uses.json")
    metrics = {"authorization": f"Bearer {keys.add('prometheus', ('metrics',))}"}

    async def scenario() -> list[int]:
        return [
            (await ask_public(headers, programs=keys)).status_code
            for headers in ({}, {"authorization": "Bearer none"}, metrics)
        ]

    assert asyncio.run(scenario()) == [200, 200, 403]
