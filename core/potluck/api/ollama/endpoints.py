"""`/api`: chats, completions and the list of models, in Ollama's shapes.

A request is answered as one of `/v1` is; only the words in which it is asked and answered differ. A stream is JSON
lines. They know no comments, so what an answer waits for is told by lines without text, which clients add to nothing.
"""

import logging
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from potluck.api import openai
from potluck.api.backend import (
    Answering,
    Finished,
    GenerationEvent,
    GenerationRequest,
    Piece,
    Started,
)
from potluck.api.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    RequestError,
    describe,
    read,
    status_of,
)
from potluck.api.generation import of_chat, of_completion, repeated
from potluck.api.metrics import Metrics
from potluck.api.models import Models
from potluck.api.ollama import shapes
from potluck.api.ollama.asking import check, in_openai_terms, is_load
from potluck.api.schema import ServedModel
from potluck.api.service import refuse_embeddings
from potluck.api.streams import LineStream, until_disconnect

logger = logging.getLogger(__name__)

_NANOSECONDS = 10**9
_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(i?q\d[a-z0-9_]*|bf16|f16|f32)(?![a-z0-9])", re.IGNORECASE
)
_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))
_Asked = TypeVar("_Asked", shapes.ChatRequest, shapes.GenerateRequest)


class OllamaApi:
    """The endpoints of `/api`. `clock` returns the Unix time."""

    def __init__(
        self, backend: Answering, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._models = Models(backend)
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
            *(route(f"/api/{name}", "POST", refuse_embeddings) for name in ("embed", "embeddings")),
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
            modified_at=_time(model.created),
            details=_details(model),
            model_info={name: value for name, value in facts.items() if value},
        )
        return JsonResponse(shown)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, await read(request, shapes.ChatRequest), _message)

    async def _generate(self, request: Request) -> Response:
        return await self._answer(request, await read(request, shapes.GenerateRequest), _response)

    async def _answer(
        self,
        request: Request,
        asked: _Asked,
        with_text: Callable[[shapes.Chunk, str], shapes.Chunk],
    ) -> Response:
        check(asked)
        model, name = await self._models.asked(_given(asked.model))
        terms = in_openai_terms(asked)
        is_chat = isinstance(terms, openai.ChatCompletionRequest)
        generation = of_chat(terms) if is_chat else of_completion(terms)[0]
        id_ = request.state.request_id
        generation = repeated(replace(generation, model=name, id=id_), 1)[0]
        lines = self._lines(generation, asked, model.name, with_text)
        if asked.stream is not False:
            return LineStream(_encoded(lines), refuse_ollama, last_words=_words)
        return JsonResponse(await until_disconnect(request.receive, _joined(lines, with_text)))

    async def _lines(
        self,
        generation: GenerationRequest,
        asked: _Asked,
        model: str,
        with_text: Callable[[shapes.Chunk, str], shapes.Chunk],
    ) -> AsyncGenerator[shapes.Chunk, None]:
        """Yield an answer; a piece of text, or nothing new, with each line."""
        began = self._clock()
        started: Started | None = None
        async with aclosing(self._events(generation)) as events:
            async for event in events:
                chunk = shapes.Chunk(model=model, created_at=_time(self._clock()))
                match event:
                    case Started():
                        started = event
                    case Piece():
                        if event.text:
                            yield with_text(chunk, event.text)
                    case Finished():
                        assert started is not None
                        chunk = _last(chunk, started, event, self._clock() - began)
                        if is_load(asked):
                            chunk = replace(chunk, done_reason="load")
                        yield with_text(chunk, "")
                    case _:
                        yield with_text(chunk, "")

    def _events(self, generation: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        return self._metrics.counted(self._backend.generate(generation))


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


async def _encoded(lines: AsyncGenerator[shapes.Chunk, None]) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. An error after the first one is the last; an error before it is raised."""
    is_sent = False
    try:
        async with aclosing(lines):
            async for line in lines:
                is_sent = True
                yield msgspec.json.encode(line)
    except Exception as error:
        if not is_sent:
            raise
        logger.info("answer broke off error=%s", type(error).__name__)
        yield _words(error)


async def _joined(
    lines: AsyncGenerator[shapes.Chunk, None],
    with_text: Callable[[shapes.Chunk, str], shapes.Chunk],
) -> shapes.Chunk:
    """All lines of an answer as one."""
    texts: list[str] = []
    last: shapes.Chunk | None = None
    async with aclosing(lines):
        async for last in lines:
            texts.append(last.message.content if last.message else last.response or "")
    assert last is not None
    return with_text(last, "".join(texts))


def _message(chunk: shapes.Chunk, text: str) -> shapes.Chunk:
    return replace(chunk, message=shapes.AnswerMessage(content=text))


def _response(chunk: shapes.Chunk, text: str) -> shapes.Chunk:
    return replace(chunk, response=text)


def _last(
    chunk: shapes.Chunk, started: Started, finished: Finished, total_s: float
) -> shapes.Chunk:
    """The line that says how an answer ended; `total_s` is since its request."""
    timings, tokens = finished.timings, finished.completion_tokens
    decode_s = (tokens - 1) / timings.tokens_per_s if timings.tokens_per_s and tokens else 0.0
    prompt_s = timings.time_to_first_token_s
    return replace(
        chunk,
        done=True,
        done_reason=finished.reason,
        total_duration=_ns(total_s),
        load_duration=_ns(max(0.0, total_s - decode_s - prompt_s)),
        prompt_eval_count=len(started.prompt_token_ids),
        prompt_eval_duration=_ns(prompt_s),
        eval_count=tokens,
        eval_duration=_ns(decode_s),
    )


def _ns(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _model(model: ServedModel) -> shapes.Model:
    name = model.name if ":" in model.name else f"{model.name}:latest"
    digest = next((alias for alias in model.aliases if re.fullmatch("[0-9a-f]{64}", alias)), "")
    return shapes.Model(
        name=name,
        model=name,
        modified_at=_time(model.created),
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
