"""`/v1/messages`: answers in Anthropic's shapes."""

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.anthropic.answers import MessageFormat, whole
from potluck.api.anthropic.asking import of_message, prompt_of
from potluck.api.anthropic.shapes import (
    Counted,
    CountRequest,
    ErrorAnswer,
    ErrorDetail,
    MessageRequest,
)
from potluck.api.backend import Answering
from potluck.api.http.endpoint import Endpoint, Handler, JsonResponse, describe, read, status_of
from potluck.api.http.streams import Event, EventStream, until_disconnect
from potluck.api.metrics import Metrics
from potluck.api.prompts import TokensRequest
from potluck.api.v1.generation import repeated
from potluck.api.v1.models import ALIAS, Models
from potluck.api.v1.named_events import named_events
from potluck.api.v1.single import collected

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OF_ANTHROPIC = "claude-"  # names that its programs ask for by themselves


class Messages:
    """The endpoints of Anthropic's API."""

    def __init__(self, backend: Answering, metrics: Metrics) -> None:
        self._backend, self._metrics = backend, metrics
        self._models = Models(backend)

    def routes(self) -> list[Route]:
        """The routes of all endpoints."""

        def route(path: str, handler: Handler) -> Route:
            endpoint = Endpoint(handler, refuse_anthropic, lambda: self._backend.hold("request"))
            return Route(path, endpoint, methods=["POST"])

        return [
            route("/v1/messages", self._answer),
            route("/v1/messages/count_tokens", self._count),
        ]

    async def _count(self, request: Request) -> Response:
        asked = await read(request, CountRequest)
        _, model = await self._models.asked(request, _known(asked.model))
        found = await self._backend.tokens(TokensRequest(prompt=prompt_of(asked), model=model))
        return JsonResponse(Counted(input_tokens=len(found.token_ids)))

    async def _answer(self, request: Request) -> Response:
        asked = await read(request, MessageRequest)
        wanted = of_message(asked)
        served, name = await self._models.asked(request, _known(asked.model))
        id_ = request.state.request_id
        (generation,) = repeated(replace(wanted, model=name, id=id_), 1)
        events = self._metrics.counted(self._backend.generate(generation))
        if asked.stream:
            return EventStream(
                named_events(events, MessageFormat(served.name), broken=_broken),
                refuse_anthropic,
                last_words=_broken,
            )
        parts = await until_disconnect(request.receive, collected(events))
        return JsonResponse(whole(served.name, *parts))


def refuse_anthropic(error: Exception) -> Response:
    """Return an error in Anthropic's shape."""
    return JsonResponse(_error(error), status_of(error))


def _error(error: Exception) -> ErrorAnswer:
    status = status_of(error)
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return ErrorAnswer(error=ErrorDetail(type=kind, message=describe(error).message))


def _known(model: str) -> str:
    """The model that a name stands for: the loaded one, if it is one of Anthropic's own."""
    return ALIAS if model.startswith(_OF_ANTHROPIC) else model


def _broken(error: Exception) -> Event:
    return Event("error", msgspec.json.encode(_error(error)))
