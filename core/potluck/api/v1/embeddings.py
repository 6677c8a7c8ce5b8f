"""`/v1/embeddings`, in OpenAI's shapes: what a model makes of texts, as vectors of length 1.

An embedding is the hidden state of a text's last token, which has read all of it. Models that were trained for
embeddings give good ones; others give some.
"""

import base64
import math
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.backend import Answering
from potluck.api.events import GenerationEvent, Started
from potluck.api.http.endpoint import Endpoint, JsonResponse, RequestError, read, refuse_openai
from potluck.api.http.streams import until_disconnect
from potluck.api.metrics import Metrics
from potluck.api.prompts import GenerationRequest, SamplingOptions, TextPrompt, TokenPrompt
from potluck.api.v1.answer_shapes import Embedding, EmbeddingsAnswer, EmbeddingsUsage
from potluck.api.v1.merging import merged
from potluck.api.v1.models import Models
from potluck.api.v1.openai_checks import texts_or_ids
from potluck.api.v1.request_shapes import EmbeddingsRequest

_AT_ONCE = 8  # the others of a request wait


class Embeddings:
    """The endpoint, and what Ollama's needs of it."""

    def __init__(self, backend: Answering, metrics: Metrics) -> None:
        self._backend, self._metrics = backend, metrics
        self._models = Models(backend)

    def routes(self) -> list[Route]:
        endpoint = Endpoint(self._answer, refuse_openai, lambda: self._backend.hold("request"))
        return [Route("/v1/embeddings", endpoint, methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        asked = await read(request, EmbeddingsRequest)
        model, started = await self.of(request, asked.model, texts_or_ids(asked.input, "input"))
        vectors = [vector_of(each.embedding, asked.dimensions) for each in started]
        tokens = sum(len(each.prompt_token_ids) for each in started)
        is_text = asked.encoding_format == "base64"
        return JsonResponse(
            EmbeddingsAnswer(
                data=[
                    Embedding(embedding=_base64(vector) if is_text else vector, index=index)
                    for index, vector in enumerate(vectors)
                ],
                model=model,
                usage=EmbeddingsUsage(prompt_tokens=tokens, total_tokens=tokens),
            )
        )

    async def of(
        self, request: Request, model: str | None, inputs: Sequence[str | list[int]]
    ) -> tuple[str, list[Started]]:
        """The name of the model that was asked for, and what it says of each input."""
        served, name = await self._models.asked(request, model)
        generations = [
            GenerationRequest(
                prompt=TextPrompt(each) if isinstance(each, str) else TokenPrompt(tuple(each)),
                id=request.state.request_id,
                model=name,
                sampling=SamplingOptions(temperature=0, seed=0),
                max_tokens=0,
                embeds=True,
            )
            for each in inputs
        ]
        found = await until_disconnect(request.receive, self._collect(generations))
        return served.name, found

    async def _collect(self, generations: Sequence[GenerationRequest]) -> list[Started]:
        found: dict[int, Started] = {}

        for first in range(0, len(generations), _AT_ONCE):
            some = generations[first : first + _AT_ONCE]
            async with aclosing(merged(self._events, some)) as events:
                async for number, event in events:
                    if isinstance(event, Started):
                        found[first + number] = event
        return [found[number] for number in range(len(generations))]

    def _events(self, generation: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        return self._metrics.counted(self._backend.generate(generation))


def vector_of(embedding: bytes, dimensions: int | None = None) -> list[float]:
    """An embedding, or its first dimensions, of length 1.

    Raises:
        RequestError: it has fewer dimensions.
    """
    count = len(embedding) // 4
    if dimensions is not None and dimensions > count:
        raise RequestError(
            400, f"dimensions: the embeddings of this model have {count}.", param="dimensions"
        )
    found = struct.unpack(f"<{count}f", embedding)[:dimensions]
    length = math.hypot(*found) or 1.0
    return [number / length for number in found]


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
