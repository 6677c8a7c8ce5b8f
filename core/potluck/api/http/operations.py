"""The operations of the local API: each says what it takes and gives, and is served and described by that alone.

`GET /cluster/openapi.json` has the description of all, made of the types that bodies are decoded to and answers are
encoded from (OpenAPI 3.1).
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck import __version__
from potluck.api.backend import Answering, Holder
from potluck.api.http.endpoint import Endpoint, JsonResponse, read, refuse
from potluck.api.http.streams import EventStream
from potluck.api.values.errors import ErrorBody

_PARAMETER = re.compile(r"\{(?P<name>\w+)(?::(?P<kind>\w+))?\}")
_REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes:
        method: of HTTP.
        path: as Starlette writes it.
        does: what it does, in a sentence.
        run: called with the body, None if it takes none, and the parameters.
        takes: the type of the body; None: there is none.
        gives: the type of the answer, or of each event; None: there is nothing to say but that it is done.
        query: parameters behind the path, each with a sentence; one that is not given is empty.
        is_stream: whether `run` gives an async generator of events, encoded.
        last_words: encodes an error as the last event of a stream; None: streams end without.
        holder: who keeps the node from ending as idle meanwhile; None: nobody.
    """

    method: str
    path: str
    does: str
    run: Callable[[Any, Mapping[str, Any]], Any]
    takes: Any = None
    gives: Any = None
    query: Mapping[str, str] | None = None
    is_stream: bool = False
    last_words: Callable[[Exception], bytes] | None = None
    holder: Holder | None = "request"

    async def answer(self, request: Request) -> Response | None:
        """Read the body, run, and encode what it gives."""
        asked = None if self.takes is None else await read(request, self.takes)
        query = {name: request.query_params.get(name, "") for name in self.query or ()}
        given = self.run(asked, {**request.path_params, **query})
        if self.is_stream:
            return EventStream(given, refuse, last_words=self.last_words)
        if inspect.isawaitable(given):
            given = await cast("Awaitable[object]", given)
        return None if self.gives is None else JsonResponse(given)


def routes(operations: Sequence[Operation], backend: Answering) -> list[Route]:
    """The routes of operations, and of their description."""
    description = msgspec.Raw(msgspec.json.encode(describe(operations)))
    document = Operation(
        method="GET",
        path="/cluster/openapi.json",
        does="This description.",
        run=lambda _, __: description,
        gives=dict[str, Any],
        holder=None,
    )
    return [_route(operation, backend) for operation in (*operations, document)]


def describe(operations: Sequence[Operation]) -> dict[str, object]:
    """The OpenAPI document of operations."""
    types = [kind for each in operations for kind in (each.takes, each.gives) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [ErrorBody, *types], ref_template=_REFERENCE
    )
    error, *others = schemas
    schema_of = iter(others)
    paths: dict[str, dict[str, object]] = {}
    for each in operations:
        takes = None if each.takes is None else next(schema_of)
        gives = None if each.gives is None else next(schema_of)
        path = _PARAMETER.sub(r"{\g<name>}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _described(each, takes, gives, error)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Potluck's local API",
            "version": __version__,
            "description": "What the window and the commands ask a node. It listens on loopback alone; the port and"
            " the token are in the user's `node.json`.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(
    operation: Operation,
    takes: Mapping[str, object] | None,
    gives: Mapping[str, object] | None,
    error: Mapping[str, object],
) -> dict[str, object]:
    parameters = [
        {
            "name": found["name"],
            "in": "path",
            "required": True,
            "schema": {"type": "integer" if found["kind"] == "int" else "string"},
        }
        for found in _PARAMETER.finditer(operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": words, "schema": {"type": "string"}}
        for name, words in (operation.query or {}).items()
    ]
    kind = "text/event-stream" if operation.is_stream else "application/json"
    what = "Each event's data." if operation.is_stream else "It is done."
    described: dict[str, object] = {
        "summary": operation.does,
        "parameters": parameters,
        "responses": {
            "200": {
                "description": what,
                "content": {kind: {"schema": gives or {"type": "object"}}},
            },
            "default": {
                "description": "Why it is not done.",
                "content": {"application/json": {"schema": error}},
            },
        },
    }
    if takes is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": takes}},
        }
    return described


def _route(operation: Operation, backend: Answering) -> Route:
    holder = operation.holder
    hold = nullcontext if holder is None else (lambda: backend.hold(holder))
    endpoint = Endpoint(operation.answer, refuse, hold)
    return Route(operation.path, endpoint, methods=[operation.method])
