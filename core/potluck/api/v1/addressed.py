"""Pictures that a program names by an address: their bytes take its place before the node sees the prompt."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import TypeAlias

from msgspec.structs import replace

from potluck.api.backend import Answering, Holder
from potluck.api.events import GenerationEvent, Tokens
from potluck.api.http.endpoint import MAX_BODY
from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    GenerationRequest,
    GivenPicture,
    Prompt,
    TokensRequest,
)
from potluck.api.v1.request_shapes import UnsupportedParameterError
from potluck.api.values.schema import ServedModel
from potluck.errors import UsageError

# Of all files that are fetched for a request: as base64 they go to the node in one body (`MAX_BODY`).
MOST_FETCHED = MAX_BODY * 3 // 4 - (1 << 20)
DEADLINE_S = 60.0  # for all of them

Fetch: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Returns the file at a web address, of at most so many bytes. Raises a UsageError that says why not."""


class WithPictures:
    """What answers, for prompts whose pictures may be addresses."""

    def __init__(self, backend: Answering, fetch: Fetch | None) -> None:
        """Answer by a backend.

        Args:
            backend: sees no address.
            fetch: gets pictures; None: the user does not allow it, and addresses are refused.
        """
        self._backend = backend
        self._fetch = fetch

    async def served_models(self) -> Sequence[ServedModel]:
        return await self._backend.served_models()

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        return self._backend.hold(holder)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        if not _has_addresses(request.prompt):
            return self._backend.generate(request)
        return self._generate(request)

    async def _generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        fetched = replace(request, prompt=await self._fetched(request.prompt))
        async with aclosing(self._backend.generate(fetched)) as events:
            async for event in events:
                yield event

    async def tokens(self, request: TokensRequest) -> Tokens:
        return await self._backend.tokens(
            replace(request, prompt=await self._fetched(request.prompt))
        )

    async def _fetched(self, prompt: Prompt) -> Prompt:
        """The prompt with the bytes of all its pictures.

        Raises:
            UnsupportedParameterError: one cannot be had; the error names its field.
        """
        if not isinstance(prompt, ChatPrompt) or not _has_addresses(prompt):
            return prompt
        left, turns, field = MOST_FETCHED, list[ChatTurn](), ""
        try:
            async with asyncio.timeout(DEADLINE_S):
                for turn in prompt.turns:
                    pictures = list[GivenPicture]()
                    for picture in turn.pictures:
                        field = picture.field
                        pictures.append(await self._whole(picture, left))
                        left -= len(pictures[-1].data) if picture.address else 0
                    turns.append(replace(turn, pictures=tuple(pictures)) if pictures else turn)
        except TimeoutError:
            raise UnsupportedParameterError(
                field,
                f"{field}: the pictures of this request did not come within {DEADLINE_S:.0f} seconds."
                " Try again later, or send them yourself.",
            ) from None
        return replace(prompt, turns=tuple(turns))

    async def _whole(self, picture: GivenPicture, most: int) -> GivenPicture:
        if not picture.address:
            return picture
        if self._fetch is None:
            raise UnsupportedParameterError(
                picture.field,
                f"{picture.field}: Potluck fetches no pictures for programs, unless it was started so"
                " (`potluck serve --fetch-pictures`). Send the picture itself, as data:image/png;base64,…",
            )
        try:
            data = await self._fetch(picture.address, most)
        except UsageError as error:
            raise UnsupportedParameterError(
                picture.field, f"{picture.field}: {error.message}"
            ) from None
        return GivenPicture(data=data, at=picture.at)


def _has_addresses(prompt: Prompt) -> bool:
    return isinstance(prompt, ChatPrompt) and any(
        picture.address for turn in prompt.turns for picture in turn.pictures
    )
