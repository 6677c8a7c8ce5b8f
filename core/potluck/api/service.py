"""What programs ask besides answers: `/health`, `/metrics`, `/tokenize` and `/detokenize`.

`/tokenize` and `/detokenize` take and give the fields of llama.cpp's server and of vLLM's, which differ in names alone.
"""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.backend import Answering
from potluck.api.events import Tokens
from potluck.api.http.endpoint import (
    Endpoint,
    Handler,
    JsonResponse,
    RequestError,
    read,
    refuse_openai,
)
from potluck.api.metrics import Metrics
from potluck.api.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt, TokensRequest
from potluck.api.v1.generation import turn_of
from potluck.api.v1.models import Models
from potluck.api.v1.request_shapes import ChatMessage, TokenIds


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """POST /tokenize: a text, or the messages of a chat."""

    content: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    model: Annotated[str, Meta(max_length=4096)] | None = None
    with_pieces: bool = False
    # With the model's tokens for the beginning of a text. llama.cpp's clients want them if they say so,
    # vLLM's if they do not say otherwise.
    add_special: bool = False
    add_special_tokens: bool = True


class Piece(Struct, frozen=True, kw_only=True):
    """A token and its text; as a list of bytes, if it is no whole characters."""

    id: int
    piece: str | list[int]


class Tokenized(Struct, frozen=True, kw_only=True):
    """The answer; `max_model_len` is the context."""

    tokens: list[int] | list[Piece]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: TokenIds
    model: Annotated[str, Meta(max_length=4096)] | None = None


class Detokenized(Struct, frozen=True, kw_only=True):
    """The text, without special tokens, under both names."""

    content: str
    prompt: str


class HealthOk(Struct, frozen=True, kw_only=True):
    """Programs are answered."""

    status: str = "ok"


class Service:
    """These endpoints."""

    def __init__(self, backend: Answering, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._models = Models(backend)

    def routes(self, *, health: bool) -> list[Route]:
        """Their routes; with `/health`, if nobody else answers that."""

        def route(path: str, method: str, handler: Handler) -> Route:
            endpoint = Endpoint(handler, refuse_openai, lambda: self._backend.hold("request"))
            return Route(path, endpoint, methods=[method])

        return [
            *([route("/health", "GET", self._health)] if health else []),
            route("/metrics", "GET", self._give_metrics),
            route("/tokenize", "POST", self._tokenize),
            route("/detokenize", "POST", self._detokenize),
        ]

    async def _health(self, request: Request) -> Response:
        await self._backend.served_models()  # it says what is done while there is no model yet
        return JsonResponse(HealthOk())

    async def _give_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _tokenize(self, request: Request) -> Response:
        asked = await read(request, TokenizeRequest)
        found = await self._tokens(request, _prompt(asked), asked.model)
        ids = list(found.token_ids)
        pieces = [
            Piece(id=token_id, piece=_text_or_bytes(piece))
            for token_id, piece in zip(ids, found.pieces, strict=True)
        ]
        return JsonResponse(
            Tokenized(
                tokens=pieces if asked.with_pieces else ids,
                count=len(ids),
                max_model_len=found.context,
            )
        )

    async def _detokenize(self, request: Request) -> Response:
        asked = await read(request, DetokenizeRequest)
        found = await self._tokens(request, TokenPrompt(tuple(asked.tokens)), asked.model)
        return JsonResponse(Detokenized(content=found.text, prompt=found.text))

    async def _tokens(self, request: Request, prompt: Prompt, model: str | None) -> Tokens:
        _, name = await self._models.asked(request, model)
        return await self._backend.tokens(TokensRequest(prompt=prompt, model=name))


def _prompt(asked: TokenizeRequest) -> Prompt:
    if asked.messages is not None:
        return ChatPrompt(tuple(turn_of(message) for message in asked.messages))
    if asked.content is not None:
        return TextPrompt(asked.content, special=asked.add_special)
    if asked.prompt is not None:
        return TextPrompt(asked.prompt, special=asked.add_special_tokens)
    raise RequestError(400, "content: this field is required.", param="content")


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
