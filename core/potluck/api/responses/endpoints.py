"""`/v1/responses`: answers in the shapes of OpenAI's Responses API."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.answers import progress_text
from potluck.api.backend import Answering
from potluck.api.endpoint import Endpoint, Handler, JsonResponse, describe, read, refuse_openai
from potluck.api.events import Finished, Loading, Piece, Reading, Started, Waiting
from potluck.api.generation import repeated
from potluck.api.metrics import Metrics
from potluck.api.models import Models
from potluck.api.prompts import ChatTurn, GenerationRequest
from potluck.api.responses.answers import ResponseFormat, new_response
from potluck.api.responses.asking import namespaces_of, of_response, turns_of
from potluck.api.responses.events import Numbered
from potluck.api.responses.shapes import Deleted, ResponseRequest
from potluck.api.responses.stored import Stored, StoredResponses
from potluck.api.single import collected
from potluck.api.streams import Comment, Event, EventStream, until_disconnect

logger = logging.getLogger(__name__)


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
        if asked.stream:
            return EventStream(
                self._events(generation, form, turns),
                refuse_openai,
                last_words=lambda error: _broken(form, error),
            )
        events = self._metrics.counted(self._backend.generate(generation))
        answer = form.whole(*await until_disconnect(request.receive, collected(events)))
        self._keep(form, turns)
        return JsonResponse(answer)

    def _keep(self, form: ResponseFormat, turns: Sequence[ChatTurn]) -> None:
        if form.response.store:
            self._stored.add(Stored(form.response, (*turns, form.turn())))

    async def _events(
        self, generation: GenerationRequest, form: ResponseFormat, turns: Sequence[ChatTurn]
    ) -> AsyncGenerator[Event | Comment, None]:
        """Yield an answer as server-sent events, and comments while it waits."""
        is_sent = False
        try:
            counted = self._metrics.counted(self._backend.generate(generation))
            async with aclosing(counted) as events:
                async for event in events:
                    is_sent = True
                    match event:
                        case Waiting() | Loading() | Reading():
                            yield Comment(progress_text(event))
                            continue
                        case Started():
                            parts = form.first(event)
                        case Piece():
                            parts = form.piece(event)
                        case Finished():
                            parts = form.last(event)
                    for part in parts:
                        yield _named(part)
            self._keep(form, turns)
        except Exception as error:
            if not is_sent:
                raise
            logger.info("answer broke off error=%s", type(error).__name__)
            yield _broken(form, error)


def _broken(form: ResponseFormat, error: Exception) -> Event:
    described = describe(error)
    return _named(form.broken(described.code, described.message))


def _named(event: Numbered) -> Event:
    return Event(str(event.__struct_config__.tag), msgspec.json.encode(event))
