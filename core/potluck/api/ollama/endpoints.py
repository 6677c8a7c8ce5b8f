"""`/api`: chats, completions and the list of models, in Ollama's shapes.

A request is answered as one of `/v1` is; only the words in which it is asked and answered differ. A stream is JSON
lines. They know no comments, so what an answer waits for is told by lines without text, which clients add to nothing.
"""

import logging
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from potluck.api.backend import Answering
from potluck.api.events import Finished, GenerationEvent, Piece, Started
from potluck.api.http.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    RequestError,
    describe,
    read,
    status_of,
)
from potluck.api.http.streams import LineStream, until_disconnect
from potluck.api.metrics import Metrics
from potluck.api.ollama import shapes
from potluck.api.ollama.answers import LineFormat, joined, nanoseconds, time_text
from potluck.api.ollama.asking import check, in_openai_terms, is_load
from potluck.api.v1.embeddings import Embeddings, vector_of
from potluck.api.v1.generation import of_chat, of_completion, repeated
from potluck.api.v1.models import Models
from potluck.api.v1.request_shapes import ChatCompletionRequest
from potluck.api.v1.single import collected
from potluck.api.values.schema import ServedModel

logger = logging.getLogger(__name__)

_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(i?q\d[a-z0-9_]*|bf16|f16|f32)(?![a-z0-9])", re.IGNORECASE
)
# Of every model: one whose template knows no tools gets them in its system message.
_CAPABILITIES = ("completion", "tools", "embedding")
_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


class OllamaApi:
    """The endpoints of `/api`. `clock` returns the Unix time."""

    def __init__(
        self, backend: Answering, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._models = Models(backend)
        self._embeddings = Embeddings(backend, metrics)
        self._clock = clock

    def routes(self) -> list[Route]:
        def route(path: str, method: str, handler: Handler) -> Route:
            endpoint = Endpoint(handler, refuse_ollama, lambda: self._backend.hold("request"))
            return Route(path, endpoint, methods=[method])

        return [
            route("/api/version", "GET", self._version),
            route("/api/tags", "GET", self._tags),
            route("/api/ps", "GET", self._ps),
            route("/api/show", "POST", self._show),
            route("/api/chat", "POST", self._chat),
            route("/api/generate", "POST", self._generate),
            *(route(f"/api/{name}", "POST", _not_offered) for name in ("pull", "create", "push")),
            route("/api/embed", "POST", self._embed),
            route("/api/embeddings", "POST", self._embed_one),
        ]

    async def _version(self, request: Request) -> Response:
        return JsonResponse(shapes.Version())

    async def _tags(self, request: Request) -> Response:
        served = await self._backend.served_models()
        return JsonResponse(shapes.ModelList(models=tuple(map(_model, served))))

    async def _ps(self, request: Request) -> Response:
        loaded = [model for model in await self._backend.served_models() if model.is_loaded]
        return JsonResponse(shapes.ModelList(models=tuple(map(_loaded_model, loaded))))

    async def _show(self, request: Request) -> Response:
        asked = await read(request, shapes.ShowRequest)
        model = await self._models.find(_given(asked.model or asked.name))
        facts = {
            "general.architecture": model.family,
            "general.basename": model.name,
            "general.parameter_count": model.parameters,
            f"{model.family}.context_length": model.context,
        }
        shown = shapes.Shown(
            modified_at=time_text(model.created),
            details=_details(model),
            model_info={name: value for name, value in facts.items() if value},
            capabilities=(*_CAPABILITIES, "vision") if model.sees else _CAPABILITIES,
        )
        return JsonResponse(shown)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, await read(request, shapes.ChatRequest))

    async def _generate(self, request: Request) -> Response:
        return await self._answer(request, await read(request, shapes.GenerateRequest))

    async def _embed(self, request: Request) -> Response:
        asked = await read(request, shapes.EmbedRequest)
        inputs = [asked.input] if isinstance(asked.input, str) else asked.input
        began = self._clock()
        model, started = await self._embeddings.of(request, _given(asked.model), inputs)
        embedded = shapes.Embedded(
            model=model,
            embeddings=[vector_of(each.embedding, asked.dimensions) for each in started],
            prompt_eval_count=sum(len(each.prompt_token_ids) for each in started),
            total_duration=nanoseconds(self._clock() - began),
        )
        return JsonResponse(embedded)

    async def _embed_one(self, request: Request) -> Response:
        asked = await read(request, shapes.EmbeddingsRequest)
        _, (started,) = await self._embeddings.of(request, _given(asked.model), [asked.prompt])
        return JsonResponse(shapes.OneEmbedded(embedding=vector_of(started.embedding)))

    async def _answer(
        self, request: Request, asked: shapes.ChatRequest | shapes.GenerateRequest
    ) -> Response:
        check(asked)
        model, name = await self._models.asked(request, _given(asked.model))
        terms = in_openai_terms(asked)
        is_chat = isinstance(terms, ChatCompletionRequest)
        wanted = of_chat(terms) if is_chat else of_completion(terms)[0]
        (generation,) = repeated(replace(wanted, model=name, id=request.state.request_id), 1)
        form = LineFormat(
            model.name,
            is_chat=isinstance(asked, shapes.ChatRequest),
            is_load=is_load(asked),
            clock=self._clock,
        )
        events = self._metrics.counted(self._backend.generate(generation))
        if asked.stream is not False:
            return LineStream(_lines(events, form), refuse_ollama, last_words=_words)
        started, pieces, finished = await until_disconnect(request.receive, collected(events))
        form.first(started)
        lines = [line for piece in pieces for line in form.piece(piece)]
        return JsonResponse(joined([*lines, *form.last(finished)]))


async def running(request: Request) -> Response:
    """GET /: Ollama's clients look whether anybody is there."""
    return PlainTextResponse("Potluck is running")


def refuse_ollama(error: Exception) -> Response:
    """Return an error in the shape of `/api`."""
    return Response(_words(error), status_of(error), media_type="application/json")


def _words(error: Exception) -> bytes:
    return msgspec.json.encode(shapes.Refusal(error=describe(error).message))


async def _not_offered(request: Request) -> Response:
    raise RequestError(
        501, "Models are downloaded in Potluck: in its window, or by `potluck models pull NAME`."
    )


def _given(name: str) -> str:
    if not name:
        raise RequestError(400, "model: this field is required.", param="model")
    return name


async def _lines(
    events: AsyncGenerator[GenerationEvent, None], form: LineFormat
) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. An error after the first one is the last; an error before it is raised."""
    is_sent = False
    try:
        async with aclosing(events):
            async for event in events:
                match event:
                    case Started():
                        form.first(event)
                        lines = []
                    case Piece():
                        lines = form.piece(event)
                    case Finished():
                        lines = form.last(event)
                    case _:
                        lines = [form.waiting()]
                for line in lines:
                    is_sent = True
                    yield msgspec.json.encode(line)
    except Exception as error:
        if not is_sent:
            raise
        logger.info("answer broke off error=%s", type(error).__name__)
        yield _words(error)


def _model(model: ServedModel) -> shapes.Model:
    name = model.name if ":" in model.name else f"{model.name}:latest"
    digest = next((alias for alias in model.aliases if re.fullmatch("[0-9a-f]{64}", alias)), "")
    return shapes.Model(
        name=name,
        model=name,
        modified_at=time_text(model.created),
        size=model.nbytes,
        digest=digest,
        details=_details(model),
    )


def _loaded_model(model: ServedModel) -> shapes.Model:
    return replace(_model(model), size_vram=model.nbytes, context_length=model.context)


def _details(model: ServedModel) -> shapes.Details:
    quantised = _QUANTISATION.findall(model.name)
    return shapes.Details(
        format=model.format or "",
        family=model.family,
        families=(model.family,) if model.family else (),
        parameter_size=_size(model.parameters),
        quantization_level=quantised[-1].upper() if quantised else "",
    )


def _size(parameters: int) -> str:
    """A number of parameters as people write it, such as 8.2B."""
    for unit, sign in _UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.1f}{sign}"
    return str(parameters) if parameters else ""
