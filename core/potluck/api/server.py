"""The two HTTP applications of a node: the local API, and `/v1` alone for `potluck serve`.

local_app   /cluster/* and what public_app has   loopback, the node's own token
public_app  /v1/*, Ollama's /api/*, /health /metrics /tokenize /detokenize   loopback without a key, or anywhere with one

Web pages use neither, but for the origins that `potluck serve --origin` lists, and the pages of apps that run on
this computer: their browsers are told so (CORS).
"""

import re
from collections.abc import Callable, Collection, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from potluck.api.anthropic.endpoints import Messages, refuse_anthropic
from potluck.api.backend import Answering, Backend
from potluck.api.cluster import cluster_operations
from potluck.api.http.endpoint import RequestError, refuse, refuse_openai
from potluck.api.http.listener import Guard, HttpServer, Programs, is_loopback_host
from potluck.api.http.operations import routes
from potluck.api.http.request_ids import RequestIds
from potluck.api.metrics import Metrics
from potluck.api.ollama.endpoints import OllamaApi, refuse_ollama, running
from potluck.api.responses.endpoints import Responses
from potluck.api.service import Service
from potluck.api.v1.addressed import Fetch, WithPictures
from potluck.api.v1.completions import Completions
from potluck.api.v1.embeddings import Embeddings
from potluck.errors import UsageError
from potluck.ids import Right
from potluck.program_keys import ProgramKeys

__all__ = ["HttpServer", "local_app", "public_app"]

# Pages of Electron, VS Code, Tauri and Capacitor, which no website can be.
_APPS = (
    r"(?:app|vscode-webview|vscode-file|tauri|capacitor|ionic)://[A-Za-z0-9._:-]*",
    r"https?://tauri\.localhost",
)
_OPENAI = (["chat"], ["completions"], ["embeddings"], ["models"], ["responses"])
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]-]+")  # as browsers write it (RFC 6454)


def local_app(backend: Backend, token: str) -> ASGIApp:
    """Return the API of the window and the commands. It may listen on loopback only."""
    described = routes(cluster_operations(backend), backend)
    return _guarded([*described, *_answering(backend, health=False)], key=token, loopback=True)


def public_app(
    backend: Answering,
    *,
    host: str,
    key: str | None,
    origins: Sequence[str] = (),
    programs: ProgramKeys | None = None,
    fetch: Fetch | None = None,
) -> ASGIApp:
    """Return OpenAI's API for other programs, to listen on this host.

    Args:
        backend: what answers.
        host: where it listens.
        key: that any program may send; None: none.
        origins: of the web pages that may use it, beside those of apps.
        programs: the keys that programs have of their own.
        fetch: gets pictures that programs name by an address; None: they are refused.

    Raises:
        UsageError: other computers could reach the host, and there is no key; or what should be an
            origin is none.
    """
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise UsageError(
                f"“{origin}” is no origin: write it as http://localhost:3000, in small letters and"
                " without a path.",
                param="origins",
            )
    loopback = is_loopback_host(host)
    if not loopback and not key and not (programs is not None and programs.all()):
        raise UsageError(
            f"Listening on {host} lets other computers in: that needs a key. Make one for each program"
            " (`potluck keys add NAME`), or listen on 127.0.0.1.",
            param="key",
        )
    listed = [re.escape(origin) for origin in origins]
    # Any page can have the origin "null": it needs a key that only its user can give it.
    known = [*listed, *_APPS, *([] if loopback and key is None else ["null"])]
    pattern = re.compile("|".join(known))
    app = _guarded(
        [Route("/", running), *_answering(backend, health=True, fetch=fetch)],
        key=key,
        loopback=loopback,
        origins=lambda origin: pattern.fullmatch(origin) is not None,
        programs=lambda text: _rights(programs, text),
    )
    return CORSMiddleware(
        _without_version(app),
        allow_origin_regex=pattern.pattern,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _without_version(app: ASGIApp) -> ASGIApp:
    """Answer OpenAI's paths without `/v1` too, which addresses given to programs often lack."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].split("/", 2)[1:2] in _OPENAI:
            scope = {**scope, "path": f"/v1{scope['path']}"}
        await app(scope, receive, send)

    return answer


def _rights(programs: ProgramKeys | None, text: str) -> Collection[Right] | None:
    key = None if programs is None else programs.find(text)
    return None if key is None else key.may


def _answering(node: Answering, *, health: bool, fetch: Fetch | None = None) -> list[Route]:
    backend, metrics = WithPictures(node, fetch), Metrics()
    service = Service(backend, metrics)
    return [
        *Completions(backend, metrics).routes(),
        *Embeddings(backend, metrics).routes(),
        *Messages(backend, metrics).routes(),
        *Responses(backend, metrics).routes(),
        *OllamaApi(backend, metrics).routes(),
        *service.routes(health=health),
    ]


def _guarded(
    routes: list[Route],
    *,
    key: str | None,
    loopback: bool,
    origins: Callable[[str], bool] = lambda _: False,
    programs: Programs = lambda _: None,
) -> ASGIApp:
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
    guard = Guard(
        app, key=key, loopback=loopback, refuse=_refusal, origins=origins, programs=programs
    )
    return RequestIds(guard)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        message = f"{request.method} is not possible for {path}."
    else:
        message = f"There is nothing at {path}."
    response = _refusal(path)(RequestError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


def _refusal(path: str) -> Callable[[Exception], Response]:
    if path.startswith("/v1/messages"):
        return refuse_anthropic
    if path.startswith("/api/"):
        return refuse_ollama
    return refuse_openai if path.startswith("/v1") else refuse
