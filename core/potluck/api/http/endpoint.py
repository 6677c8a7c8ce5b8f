"""One endpoint of the API: read and check the body, answer, turn errors into a status.

All exceptions end here. A `PotluckError` becomes a status and its own sentence. A body that does
not fit becomes an error that names the field. Anything else is a bug of Potluck and is logged with
its traceback.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.http.streams import ClientGoneError
from potluck.api.values.errors import ApiError, ApiErrorBody, Error, ErrorBody
from potluck.errors import (
    BusyError,
    EngineError,
    GatedModelError,
    HubError,
    ModelError,
    NotFoundError,
    NotReadyError,
    PairingError,
    PeerError,
    PlanError,
    PotluckError,
    ProtocolError,
    StoreError,
    TooManyRequestsError,
    UsageError,
)

logger = logging.getLogger(__name__)

# Bytes. A million token ids are 8 MB in JSON; the longest context as text is 5 MB.
MAX_BODY = 16 << 20
# Nearly each value of JSON takes a comma, and a text a token for it: no context holds more. Decoding
# a million values takes 0.1 s of the event loop, 16 MB of them up to 2 s.
MAX_COMMAS = (1 << 20) + (1 << 16)
BODY_DEADLINE_S = 30.0  # a slower client only occupies a connection

RETRY_AFTER_S = 2  # for programs that ask while the node is being started

_STATUS: tuple[tuple[type[PotluckError], int], ...] = (  # the first class that fits decides
    (NotFoundError, 404),
    (TooManyRequestsError, 429),
    (UsageError, 400),
    (ModelError, 400),
    (PlanError, 409),
    (PairingError, 409),
    (BusyError, 409),
    (PeerError, 503),
    (ProtocolError, 503),
    (StoreError, 503),
    (EngineError, 503),
    (GatedModelError, 403),
    (HubError, 503),
)
# Codes that clients of OpenAI's API look for, of errors that have no better one.
_CODES = {401: "invalid_api_key", 404: "unknown_url", 429: "rate_limit_exceeded"}
_FIELD = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*?)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")

_Body = TypeVar("_Body")


class RequestError(UsageError):
    """The request itself is wrong: its path, its size, its JSON, a field or its credentials."""

    code = "bad_request"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, **({} if param is None else {"param": param}))
        self.status, self.param, self.headers = status, param, headers or {}


class JsonResponse(Response):
    """A response with a struct encoded as JSON."""

    media_type = "application/json"

    def __init__(self, value: object, status_code: int = 200) -> None:
        super().__init__(msgspec.json.encode(value), status_code)


ErrorFormat = Callable[[Exception], Response]
Handler = Callable[[Request], Awaitable[Response | None]]
"""Answers a request; None: there is nothing to say but that it is done."""


class Endpoint:
    """An ASGI application of one method and path."""

    def __init__(
        self,
        handler: Handler,
        refuse: ErrorFormat,
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hold():
            try:
                response = await self._handler(Request(scope, receive)) or JsonResponse({})
            except (ClientGoneError, ClientDisconnect):
                return
            except Exception as error:  # noqa: BLE001 - the boundary of a request
                response = self._refuse(error)
            await response(scope, receive, send)


async def read(request: Request, kind: type[_Body]) -> _Body:
    """Read the body of the request and decode it.

    Raises:
        RequestError: the body is too large, too slow or no JSON, or a field does not fit; the error
            names the field.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise RequestError(413, f"The request is larger than {MAX_BODY >> 20} MiB.")
    except TimeoutError:
        raise RequestError(408, "The request's body did not arrive in time.") from None
    if body.count(b",") > MAX_COMMAS:
        raise RequestError(413, "The request has more values than any model's context has tokens.")
    return decode(bytes(body), kind)


def decode(body: bytes, kind: type[_Body], *, field: str = "") -> _Body:
    """Decode JSON into a struct.

    Args:
        body: the JSON text.
        kind: of the struct.
        field: of which the text is the value; empty: it is the whole body.

    Raises:
        RequestError: the body is no JSON, or a field does not fit; the error names the field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, path = _explain(str(error))
        separator = "." if field and path and not path.startswith("[") else ""
        param = f"{field}{separator}{path or ''}" or None
        raise RequestError(400, f"{param}: {what}." if param else f"{what}.", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"The request's body is not valid JSON: {error}.") from None


def _explain(message: str) -> tuple[str, str | None]:
    """Split `Expected `int`, got `str` - at `$.a.b`` into (`expected `int`, got `str``, `a.b`)."""
    found = _FIELD.match(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "").lstrip(".")
    if missing := _MISSING.search(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        what = "this field is required"
    return what[:1].lower() + what[1:], path or None


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def describe(error: Exception) -> Error:
    """Return the part of an error that a client may see. An unexpected error is logged instead."""
    if isinstance(error, PotluckError):
        return Error(code=error.code, message=error.message, data=dict(error.data))
    logger.error("request failed", exc_info=error)
    return Error(
        code="internal",
        message="Something went wrong inside Potluck; its log says what."
        " Trying again may help; if it does not, restart Potluck.",
    )


def refuse(error: Exception) -> Response:
    """Return an error in the shape of `/cluster`."""
    return JsonResponse(ErrorBody(error=describe(error)), status_of(error))


def refuse_openai(error: Exception) -> Response:
    """Return an error in the shape of `/v1`."""
    response = JsonResponse(openai_error(error), status_of(error))
    if isinstance(error, NotReadyError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


def openai_error(error: Exception) -> ApiErrorBody:
    """Return the body of an error in the shape of `/v1`; inside a stream, it is a chunk."""
    described = describe(error)
    status = status_of(error)
    param, progress = described.data.get("param"), described.data.get("progress")
    if status in (401, 403):
        kind = "authentication_error"
    elif status < 500:
        kind = "invalid_request_error"
    else:
        kind = "server_error"
    return ApiErrorBody(
        error=ApiError(
            message=described.message,
            type=kind,
            param=param if isinstance(param, str) else None,
            code=_CODES.get(status, described.code)
            if isinstance(error, RequestError)
            else described.code,
            progress=progress if isinstance(progress, float) else UNSET,
        )
    )
