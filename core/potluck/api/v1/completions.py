"""`/v1`: chat and text completions and the list of models, in OpenAI's shapes.

A request becomes one `GenerationRequest` for each of its answers. The events of the backend are formatted in one of two
ways: as chunks while they arrive, or joined into one answer. The backend does not know which.
"""

import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import assert_never

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.backend import Answering
from potluck.api.events import Finished, GenerationEvent, Loading, Piece, Reading, Started, Waiting
from potluck.api.http.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    RequestError,
    openai_error,
    read,
    refuse_openai,
)
from potluck.api.http.streams import Comment, EventStream, until_disconnect
from potluck.api.metrics import Metrics
from potluck.api.prompts import GenerationRequest
from potluck.api.v1.answer_shapes import Usage
from potluck.api.v1.answers import (
    Answer,
    ChatFormat,
    Format,
    TextFormat,
    joined,
    progress_text,
    total,
    usage_of,
)
from potluck.api.v1.generation import of_chat, of_completion, repeated
from potluck.api.v1.merging import Collected, best, merged, with_logprobs
from potluck.api.v1.models import Models
from potluck.api.v1.openai_checks import check
from potluck.api.v1.request_shapes import ChatCompletionRequest, CompletionRequest, Options

logger = logging.getLogger(__name__)

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
        asked = await read(request, ChatCompletionRequest)
        check(asked)
        return await self._answer(request, asked, [of_chat(asked)], ChatFormat)

    async def _complete(self, request: Request) -> Response:
        asked = await read(request, CompletionRequest)
        check(asked)
        return await self._answer(request, asked, of_completion(asked), TextFormat, asked.best_of)

    async def _answer(
        self,
        request: Request,
        asked: Options,
        generations: Sequence[GenerationRequest],
        form: type[Format],
        best_of: int | None = None,
    ) -> Response:
        """Answer each of the prompts `asked.n` times, with the best of `best_of` answers."""
        model, name = await self._models.asked(request, asked.model)
        wanted = asked.n or 1
        tried = max(best_of or wanted, wanted)
        id_ = request.state.request_id
        named = [replace(each, model=name, id=id_) for each in generations]
        all_ = [one for each in named for one in repeated(each, tried)]
        if len(all_) > 1 and asked.known_token_ids:
            raise RequestError(
                400, "known_token_ids: an answer goes on alone.", param="known_token_ids"
            )
        answer = Answer(
            id=f"{form.prefix}-{secrets.token_hex(12)}",
            created=int(self._clock()),
            model=model.name,
            token_ids=bool(asked.return_token_ids),
            logprobs=all_[0].sampling.logprobs,
        )
        if asked.stream:
            include_usage = asked.stream_options is not None and asked.stream_options.include_usage
            forms = [form(dataclasses.replace(answer, index=i)) for i in range(len(all_))]
            return EventStream(
                self._chunks(all_, forms, wanted if include_usage else None),
                refuse_openai,
                last_words=lambda error: msgspec.json.encode(openai_error(error)),
            )
        if tried > wanted:
            all_ = [with_logprobs(one) for one in all_]
        collected = await until_disconnect(request.receive, self._collect(all_))
        chosen: list[Collected] = []
        for first in range(0, len(collected), tried):
            chosen += best(collected[first : first + tried], wanted)
        forms = [form(dataclasses.replace(answer, index=i)) for i in range(len(chosen))]
        wholes = [each.whole(*one) for each, one in zip(forms, chosen, strict=True)]
        usages = [usage_of(started, finished) for started, _, finished in collected]
        return JsonResponse(joined(wholes, total(usages, tried)))

    def _events(self, generation: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        return self._metrics.counted(self._backend.generate(generation))

    async def _collect(self, generations: Sequence[GenerationRequest]) -> list[Collected]:
        """All events of several answers."""
        started: dict[int, Started] = {}
        finished: dict[int, Finished] = {}
        pieces: list[list[Piece]] = [[] for _ in generations]
        async with aclosing(merged(self._events, generations)) as events:
            async for number, event in events:
                match event:
                    case Waiting() | Loading() | Reading():
                        pass
                    case Started():
                        started[number] = event
                    case Piece():
                        pieces[number].append(event)
                    case Finished():
                        finished[number] = event
                    case _:
                        assert_never(event)
        return [(started[i], pieces[i], finished[i]) for i in range(len(generations))]

    async def _chunks(
        self,
        generations: Sequence[GenerationRequest],
        forms: Sequence[Format],
        usage_of_repeats: int | None,
    ) -> AsyncGenerator[bytes | Comment, None]:
        """Yield the answers as the data of server-sent events, and comments while they wait.

        An error before the first of them is raised, so that the response gets its status. A later
        error is sent as a chunk. With `usage_of_repeats`, which says how many of the answers have a
        prompt in common, the last chunk has the usage.
        """
        has_usage, is_sent = usage_of_repeats is not None, False
        started: dict[int, Started] = {}
        usages: dict[int, Usage] = {}
        try:
            async with aclosing(merged(self._events, generations)) as events:
                async for number, event in events:
                    is_sent = True
                    match event:
                        case Waiting() | Loading() | Reading():
                            yield Comment(progress_text(event))
                            continue
                        case Started():
                            started[number] = event
                            chunks = forms[number].first(event)
                        case Piece():
                            chunks = forms[number].piece(event)
                        case Finished():
                            usages[number] = usage_of(started[number], event)
                            chunks = forms[number].last(event, has_usage)
                        case _:
                            assert_never(event)
                    for chunk in chunks:
                        yield msgspec.json.encode(chunk)
                    if usage_of_repeats and len(usages) == len(forms):
                        assert isinstance(event, Finished)
                        summed = total([usages[i] for i in range(len(forms))], usage_of_repeats)
                        yield msgspec.json.encode(forms[0].usage(summed, event))
        except Exception as error:
            if not is_sent:
                raise
            logger.info("answer broke off error=%s", type(error).__name__)
            yield msgspec.json.encode(openai_error(error))
            return
        yield DONE
