"""`/v1/responses`: answers in the shapes of OpenAI's Responses API."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.backend import Answering
from potluck.api.http.endpoint import Endpoint, Handler, JsonResponse, describe, read, refuse_openai
from potluck.api.http.streams import Event, EventStream, until_disconnect
from potluck.api.metrics import Metrics
from potluck.api.prompts import ChatTurn
from potluck.api.responses.answers import ResponseFormat, new_response
from potluck.api.responses.asking import namespaces_of, of_response, turns_of
from potluck.api.responses.shapes import Deleted, ResponseRequest
from potluck.api.responses.stored import Stored, StoredResponses
from potluck.api.v1.generation import repeated
from potluck.api.v1.models import Models
from potluck.api.v1.named_events import named, named_events
from potluck.api.v1.single import collected


class Responses:
    """The endpoints of the Responses API."""

    def __init__(
        self, backend: Answering, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend, self._metrics, self._clock = backend, metrics, clock
        self._models = Models(backend)
        self._stored = StoredResponses()

    def routes(self) -> list[Route]:
        """The routes of all endpoints."""

        def route(path: str, method: str, handler: Handler) -> Route:
            endpoint = Endpoint(handler, refuse_openai, lambda: self._backend.hold("request"))
            return Route(path, endpoint, methods=[method])

        return [
            route("/v1/responses", "POST", self._answer),
            route("/v1/responses/{id}", "GET", self._show),
            route("/v1/responses/{id}", "DELETE", self._delete),
        ]

    async def _show(self, request: Request) -> Response:
        return JsonResponse(self._stored.get(request.path_params["id"]).response)

    async def _delete(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        self._stored.remove(id_)
        return JsonResponse(Deleted(id=id_))

    async def _answer(self, request: Request) -> Response:
        asked = await read(request, ResponseRequest)
        turns = turns_of(asked)
        if asked.previous_response_id:
            before = self._stored.get(asked.previous_response_id, "previous_response_id")
            turns = [*before.turns, *turns]
        wanted = of_response(asked, turns)
        served, name = await self._models.asked(request, asked.model)
        id_ = request.state.request_id
        (generation,) = repeated(replace(wanted, model=name, id=id_), 1)
        begun = new_response(asked, served.name, int(self._clock()))
        form = ResponseFormat(begun, namespaces_of(asked))
        events = self._metrics.counted(self._backend.generate(generation))
        if asked.stream:
            broken = partial(_broken, form)
            stream = named_events(
                events, form, broken=broken, when_whole=lambda: self._keep(form, turns)
            )
            return EventStream(stream, refuse_openai, last_words=broken)
        answer = form.whole(*await until_disconnect(request.receive, collected(events)))
        self._keep(form, turns)
        return JsonResponse(answer)

    def _keep(self, form: ResponseFormat, turns: Sequence[ChatTurn]) -> None:
        if form.response.store:
            self._stored.add(Stored(form.response, (*turns, form.turn())))


def _broken(form: ResponseFormat, error: Exception) -> Event:
    described = describe(error)
    return named(form.broken(described.code, described.message))
