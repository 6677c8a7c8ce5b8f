"""The HTTP listener, which runs in the node's event loop, and the guard in front of it.

uvicorn runs as one task of the node: it has no signal handlers, no threads and no logging of its
own. The guard refuses requests before anything is routed or read:

- A loopback listener refuses a `Host` that is not loopback (after DNS rebinding to 127.0.0.1, a web
  page still sends its own name) and the requests of web pages (`Origin`, `Sec-Fetch-Site`), also of
  those from `localhost`, unless their origin is listed or that of an app.
- Without a key, a loopback listener refuses other users of this computer, where the system tells.
- A key is compared in constant time. An address that sent too many wrong ones waits, unless it is this
  computer's: there, one program could keep all others out. A program's own key says what it may do.
"""

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import math
import socket
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from potluck.api.http.connections import Config, Places
from potluck.api.http.endpoint import RequestError
from potluck.api.http.peer_user import Address, is_own_user
from potluck.api.http.taken import Listens, port_taken
from potluck.api.http.wrong_keys import WrongKeys
from potluck.errors import UsageError
from potluck.ids import RIGHTS, Right
from potluck.reasons import reason
from potluck.sockets import own_port

Programs: TypeAlias = Callable[[str], Collection[Right] | None]

BACKLOG = 128
# What programs in containers call this computer. No website can have these names.
_CONTAINERS_SAY = ("host.docker.internal", "host.containers.internal")
_DONE: Mapping[Right, str] = {"ask": "ask a model", "metrics": "read the metrics"}
_STOPS = {"type": "http.disconnect", "stops": True}  # see `streams.wait_disconnect`
SHUTDOWN_S = 2  # streams end at once on `stop`; requests that are left after this time are cut off


class Guard:
    """An ASGI application that passes requests on to another application, or refuses them.

    What the program may do that asks is the `may` of the request's state: some of `RIGHTS`.

    Args:
        key: that `Authorization: Bearer` or `x-api-key` may carry, for everything; None: there is none.
        loopback: whether only this computer may reach the listener. Without `key`, it needs none then.
        refuse: returns the error format of a path, since `/v1` uses OpenAI's shape.
        origins: returns whether web pages of an origin may use a loopback listener.
        programs: returns what the program with a key may do; None: it is no program's.
        is_own: whether the program at the first of two ends is this user's.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        loopback: bool,
        refuse: Callable[[str], Callable[[Exception], Response]],
        origins: Callable[[str], bool] = lambda _: False,
        programs: Programs = lambda _: None,
        is_own: Callable[[Address, Address], bool] = is_own_user,
    ) -> None:
        self._app = app
        self._key = key
        self._loopback = loopback
        self._refuse = refuse
        self._origins, self._programs = origins, programs
        self._is_own = is_own
        self._wrong = WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # neither WebSockets nor lifespan events
            return
        try:
            may = self._check(scope)
        except RequestError as error:
            response = self._refuse(scope["path"])(error)
            response.headers.update(error.headers)
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["may"] = may
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> Collection[Right]:
        """Return the rights of the program that asks."""
        headers, client = Headers(scope=scope), scope["client"]
        if self._loopback:
            self._check_local(headers)
        may = self._rights_of(headers, client[0])
        if may is None and not self._is_own(client, scope["server"]):
            raise RequestError(
                403,
                "This comes from another user of the computer, who needs a key: `potluck keys add NAME`"
                " makes one.",
            )
        may = RIGHTS if may is None else may
        needed: Right = "metrics" if scope["path"] == "/metrics" else "ask"
        if needed not in may:
            raise RequestError(403, f"The key of this program does not let it {_DONE[needed]}.")
        return may

    def _check_local(self, headers: Headers) -> None:
        host = _host_of(f"//{headers.get('host', '')}")
        if host not in _CONTAINERS_SAY and not is_loopback_host(host):
            raise RequestError(403, "This listener answers to localhost only; the Host is another.")
        origin = headers.get("origin")
        if origin is not None and self._origins(origin):
            return
        site = headers.get("sec-fetch-site", "none")
        if origin is not None or site not in ("none", "same-origin"):
            raise RequestError(
                403,
                "Web pages may not use this listener. `potluck serve --origin ORIGIN` lets those of"
                " one origin in, such as http://localhost:3000.",
            )

    def _rights_of(self, headers: Headers, host: str) -> Collection[Right] | None:
        """What the key of a request gives; None: it has none of ours, and needs none."""
        if wait_s := self._wrong.wait_s(host):
            raise RequestError(
                429,
                "Too many wrong keys came from this address."
                f" It may try again in {math.ceil(wait_s / 60)} minutes.",
                headers={"retry-after": str(math.ceil(wait_s))},
            )
        given = _key_in(headers)
        if self._key is not None and _same(given, self._key):
            return RIGHTS
        if given and (may := self._programs(given)) is not None:
            return may
        if self._loopback and self._key is None:
            return None
        if given and not is_loopback_host(host):
            self._wrong.note(host)
        raise RequestError(
            401,
            "The key is missing or wrong: send it as `Authorization: Bearer KEY`, or as `x-api-key`.",
            headers={"www-authenticate": "Bearer"},
        )


def _key_in(headers: Headers) -> str:
    """The key that a request carries; empty: it has none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if not given:  # Anthropic's clients
        return headers.get("x-api-key", "").strip()
    return given.strip() if scheme.lower() == "bearer" else ""


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), key.encode())


def is_loopback_host(host: str) -> bool:
    """Return whether a host name or address can only be this computer. No resolver is asked."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpServer:
    """One listener. Call `start` once and `stop` once, both from the same event loop."""

    def __init__(self, places: Places | None = None, *, name: Listens = Listens.NODE) -> None:
        self._places = places or Places()
        self._name = name
        self._closing = asyncio.Event()
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(
        self, app: ASGIApp, host: str, port: int, *, certificate: Path | None = None
    ) -> int:
        """Start to listen, and return the bound port.

        With a file that has a key and its certificate, connections are encrypted by TLS.

        Raises:
            UsageError: the port is taken or not allowed, or `host` is not this computer's.
        """
        listener = await _bind(host, port)
        bound: int = listener.getsockname()[1]
        config = Config(
            _until(self._closing, app),
            self._places,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a stranger's request that is no HTTP is worth no line
            access_log=False,
            server_header=False,
            headers=[("server", self._name.value)],
            backlog=BACKLOG,
            timeout_keep_alive=math.ceil(self._places.idle_s),
            timeout_graceful_shutdown=SHUTDOWN_S,
            ssl_certfile=certificate,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        # The socket listens from here on: clients that connect before uvicorn accepts wait in the
        # backlog.
        return bound

    async def stop(self) -> None:
        """Stop listening, end all streams, and wait until the last request is done."""
        if self._server is None or self._task is None:
            return
        self._closing.set()
        self._server.should_exit = True
        task, self._task = self._task, None
        await task


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:  # the node handles signals itself
        yield


def _until(closing: asyncio.Event, app: ASGIApp) -> ASGIApp:
    """Wrap an application: once `closing` is set, its `receive` says that the server stops.

    Event streams then end, answers with an error, and generations are cancelled.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_close() -> Message:
            message = asyncio.ensure_future(receive())
            closed = asyncio.ensure_future(closing.wait())
            try:
                await asyncio.wait((message, closed), return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() else _STOPS
            finally:
                message.cancel()
                closed.cancel()

        await app(scope, receive_or_close, send)

    return wrapped


async def _bind(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            "127.0.0.1" if host == "localhost" else host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except OSError:
        raise UsageError(f"“{host}” is no address of this computer.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        _prepare(listener, family)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        why = await port_taken(host, port) if is_taken else _why_not(error, host, port)
        raise UsageError(why, host=host, port=port) from None
    return listener


def _prepare(listener: socket.socket, family: int) -> None:
    own_port(listener)
    if family == socket.AF_INET6:
        with contextlib.suppress(OSError):  # "::" also covers IPv4 where the system can do that
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"This system does not let Potluck use port {port}; choose another above 1023."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"“{host}” is no address of this computer."
    return f"Listening on {host} port {port} is not possible: {reason(error)}."
