"""Request ids: every answer names, in `X-Request-Id`, the request that it belongs to.

A client may choose the id, in `X-Request-Id` or, as OpenAI documents, in `X-Client-Request-Id`. A
request that is sent again with the same id and the same body has the same answer, and what was kept
of it comes at once.
"""

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = ("x-request-id", "x-client-request-id")
_MOST = 512  # characters


class RequestIds:
    """An ASGI application that gives each request of another application an id.

    The id is the `request_id` of the request's state. An id that is too long or that cannot be
    printed is replaced by another one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(Headers(scope=scope)) or f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-request-id", request_id.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await self._app(scope, receive, send_with_id)


def _given(headers: Headers) -> str | None:
    for name in _HEADERS:
        given = headers.get(name, "").strip()
        if given and len(given) <= _MOST and given.isascii() and given.isprintable():
            return given
    return None
