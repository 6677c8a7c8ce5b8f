"""`/v1`: chat and text completions and the list of models, in OpenAI's shapes.

A request becomes one `GenerationRequest`. The events of the backend are formatted in one of two
ways: as chunks while they arrive, or joined into one answer. The backend does not know which.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import assert_never

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api import openai
from potluck.api.answers import Answer, ChatFormat, Format, TextFormat
from potluck.api.backend import (
    Answering,
    ChatPrompt,
    ChatTurn,
    Finished,
    GenerationRequest,
    Piece,
    Progress,
    Prompt,
    Reading,
    SamplingOptions,
    Started,
    TextPrompt,
    TokenPrompt,
    Waiting,
)
from potluck.api.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    openai_error,
    read,
    refuse_openai,
)
from potluck.api.metrics import Metrics
from potluck.api.models import Models
from potluck.api.streams import Comment, EventStream, until_disconnect

logger = logging.getLogger(__name__)

COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
SEED_MASK = (1 << 63) - 1  # makes OpenAI's signed seeds non-negative
DONE = b"[DONE]"


class Completions:
    """The endpoints of `/v1`."""

    def __init__(
        self, backend: Answering, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._models = Models(backend)
        self._clock = clock

    def routes(self) -> list[Route]:
        def route(path: str, method: str, handler: Handler) -> Route:
            endpoint = Endpoint(handler, refuse_openai, lambda: self._backend.hold("request"))
            return Route(path, endpoint, methods=[method])

        return [
            route("/v1/models", "GET", self._models.list),
            route("/v1/models/{name:path}", "GET", self._models.show),
            route("/v1/chat/completions", "POST", self._chat),
            route("/v1/completions", "POST", self._complete),
        ]

    async def _chat(self, request: Request) -> Response:
        asked = await read(request, openai.ChatCompletionRequest)
        openai.check(asked)
        turns = tuple(turn_of(message) for message in asked.messages)
        logprobs = asked.top_logprobs or 0 if asked.logprobs else None
        limit = asked.max_completion_tokens or asked.max_tokens
        generation = _generation(asked, ChatPrompt(turns), logprobs, limit)
        return await self._answer(request, asked, generation, ChatFormat)

    async def _complete(self, request: Request) -> Response:
        asked = await read(request, openai.CompletionRequest)
        openai.check(asked)
        prompt = openai.single_prompt(asked)
        generation = _generation(
            asked,
            TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt)),
            asked.logprobs,
            asked.max_tokens or COMPLETION_TOKENS,
        )
        return await self._answer(request, asked, generation, TextFormat)

    async def _answer(
        self,
        request: Request,
        asked: openai.Options,
        generation: GenerationRequest,
        form: type[Format],
    ) -> Response:
        model = await self._models.find(asked.model)
        generation = replace(generation, model=await self._models.asked(asked.model))
        generation = _with_seed(replace(generation, id=request.state.request_id))
        generation = replace(generation, known=tuple(asked.known_token_ids or ()))
        answer = Answer(
            id=f"{form.prefix}-{secrets.token_hex(12)}",
            created=int(self._clock()),
            model=model.name,
            token_ids=bool(asked.return_token_ids),
            logprobs=generation.sampling.logprobs,
        )
        if asked.stream:
            include_usage = asked.stream_options is not None and asked.stream_options.include_usage
            chunks = self._chunks(generation, form(answer), include_usage)
            return EventStream(
                chunks,
                refuse_openai,
                last_words=lambda error: msgspec.json.encode(openai_error(error)),
            )
        whole: Awaitable[msgspec.Struct] = until_disconnect(
            request.receive, self._whole(generation, form(answer))
        )
        return JsonResponse(await whole)

    async def _whole(self, generation: GenerationRequest, form: Format) -> msgspec.Struct:
        pieces: list[Piece] = []
        started, finished = None, None
        async with aclosing(self._metrics.counted(self._backend.generate(generation))) as events:
            async for event in events:
                match event:
                    case Waiting() | Reading():
                        pass
                    case Started():
                        started = event
                    case Piece():
                        pieces.append(event)
                    case Finished():
                        finished = event
                    case _:
                        assert_never(event)
        assert started is not None
        assert finished is not None
        return form.whole(started, pieces, finished)

    async def _chunks(
        self, generation: GenerationRequest, form: Format, include_usage: bool
    ) -> AsyncGenerator[bytes | Comment, None]:
        """Yield the answer as the data of server-sent events, and comments while it waits.

        An error before the first of them is raised, so that the response gets its status. A later
        error is sent as a chunk.
        """
        started, is_sent = None, False
        try:
            async with aclosing(
                self._metrics.counted(self._backend.generate(generation))
            ) as events:
                async for event in events:
                    is_sent = True
                    match event:
                        case Waiting() | Reading():
                            yield Comment(_progress(event))
                            continue
                        case Started():
                            started = event
                            chunks = form.first(event)
                        case Piece():
                            chunks = form.piece(event)
                        case Finished():
                            assert started is not None
                            chunks = form.last(started, event, include_usage)
                        case _:
                            assert_never(event)
                    for chunk in chunks:
                        yield msgspec.json.encode(chunk)
        except Exception as error:
            if not is_sent:
                raise
            logger.info("answer broke off error=%s", type(error).__name__)
            yield msgspec.json.encode(openai_error(error))
            return
        yield DONE


def _progress(event: Progress) -> str:
    if isinstance(event, Reading):
        return f"reading, {event.tokens} of {event.total} tokens"
    about = "" if event.seconds is None else f", about {max(1, round(event.seconds))} s"
    return f"waiting, place {event.place}{about}"


def turn_of(message: openai.ChatMessage) -> ChatTurn:
    """A message, as the model's template gets it."""
    role = "system" if message.role == "developer" else message.role
    return ChatTurn(role=role, content=openai.message_text(message))


def _generation(
    asked: openai.Options, prompt: Prompt, logprobs: int | None, limit: int | None
) -> GenerationRequest:
    sampling = SamplingOptions(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=max(asked.top_k, 0) if asked.top_k is not None else None,
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty,
        seed=asked.seed & SEED_MASK if asked.seed is not None else None,
        logprobs=logprobs,
    )
    stop: Sequence[str] = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    return GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        max_tokens=limit,
        stop=tuple(text for text in stop if text),
        ignore_eos=bool(asked.ignore_eos),
    )


def _with_seed(generation: GenerationRequest) -> GenerationRequest:
    """Choose the seed, if the client did not: the same request with the same id has the same one."""
    if generation.sampling.seed is not None:
        return generation
    digest = hashlib.sha256(msgspec.json.encode(generation)).digest()
    seed = int.from_bytes(digest[:8]) & SEED_MASK
    return replace(generation, sampling=replace(generation.sampling, seed=seed))
