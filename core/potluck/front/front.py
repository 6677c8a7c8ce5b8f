"""Answers of a node that may be lost and come back; they go on where they were.

An answer is a function of model, scheme, prompt, sampling and seed. So the front needs to keep
nothing but the events of an answer: when its node is lost, it waits for the next one, and asks it
for the tokens that follow those that were sent already.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from potluck.api.backend import Holder
from potluck.api.events import Finished, GenerationEvent, Piece, Progress, Started, Tokens
from potluck.api.prompts import GenerationRequest, TokensRequest
from potluck.api.values.schema import ServedModel
from potluck.client import Client, NodeGoneError
from potluck.errors import NotReadyError
from potluck.front.kept import KeptAnswers
from potluck.front.stream import answer, served, tokens


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the front waits for a node, in seconds."""

    new_s: float = 10.0
    """A request that has no answer yet. Then its program is told to ask again later."""
    begun_s: float = 120.0
    """An answer that has begun: for a node to be started, and the model to be loaded again."""
    retry_s: float = 0.1
    """Before a node that was just lost is asked again: it takes a moment until all know of it."""
    losses: int = 3
    """So many nodes an answer may lose: it may be the answer that ends them."""


_PATIENCE = Patience()


class Front:
    """`/v1` in front of one node after the other.

    All methods are called in one event loop.
    """

    def __init__(
        self, patience: Patience = _PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._node: Client | None = None
        self._reason = "Potluck is being started on this computer."
        self._progress = 0.0
        self._is_ready = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._kept = KeptAnswers(clock)

    # --- the node behind it

    def ready(self, node: Client) -> None:
        """Ask this node from now on."""
        self._node = node
        self._is_ready.set()

    def busy(self, reason: str, progress: float = 0.0) -> None:
        """There is no node that answers, and this is why. What is under way there breaks off.

        Args:
            reason: a sentence.
            progress: how far the model is loaded, from 0 to 1.
        """
        self._node, self._reason, self._progress = None, reason, progress
        self._is_ready.clear()
        for writer in self._open:
            writer.transport.abort()

    async def _ready(self, wait_s: float) -> Client:
        """Return the node.

        Raises:
            NotReadyError: there is none within this time; the message says what it is doing.
        """
        try:
            async with asyncio.timeout(wait_s):
                await self._is_ready.wait()
        except TimeoutError:
            raise NotReadyError(
                f"{self._reason} Try again in a moment.", progress=self._progress
            ) from None
        assert self._node is not None
        return self._node

    # --- what `/v1` asks for

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        """Do nothing: the program that has the front holds the node."""
        return nullcontext()

    async def served_models(self) -> Sequence[ServedModel]:
        """The models at hand.

        Raises:
            NotReadyError: there is no node.
            NodeGoneError: the node was lost.
        """
        return await served(await self._ready(self._patience.new_s), self._open)

    async def tokens(self, request: TokensRequest) -> Tokens:
        """The tokens of a prompt.

        Raises:
            NotReadyError: there is no node.
            NodeGoneError: the node was lost.
            PotluckError: why there are none.
        """
        return await tokens(await self._ready(self._patience.new_s), request, self._open)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Yield the events of an answer: first those that are kept of the same request.

        Raises:
            NotReadyError: there is no node.
            NodeGoneError: too many nodes were lost.
            PotluckError: why there is no answer.
        """
        events = self._kept.begin(request)
        for event in tuple(events):
            yield event
        losses = 0
        while not (events and isinstance(events[-1], Finished)):
            node = await self._ready(self._patience.begun_s if events else self._patience.new_s)
            try:
                async with aclosing(self._rest(node, request, events)) as rest:
                    async for event in rest:
                        if not isinstance(event, Progress):
                            events.append(event)
                        yield event
            except NodeGoneError:
                losses += 1
                if losses == self._patience.losses:
                    raise
                await asyncio.sleep(self._patience.retry_s)

    async def _rest(
        self, node: Client, request: GenerationRequest, events: Sequence[GenerationEvent]
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Yield what follows these events."""
        sent = (event.token_ids for event in events if isinstance(event, Piece))
        known = (*request.known, *chain.from_iterable(sent))
        has_started = bool(events)
        held_back: list[Piece] = []  # text that is no token's: known only when the answer ends
        async with aclosing(answer(node, replace(request, known=known), self._open)) as rest:
            async for event in rest:
                if isinstance(event, Piece) and not event.token_ids:
                    held_back.append(event)
                    continue
                if isinstance(event, Finished):
                    for piece in held_back:
                        yield piece
                if not (isinstance(event, Started) and has_started):
                    yield event
