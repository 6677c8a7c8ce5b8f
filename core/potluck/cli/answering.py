"""Answers on the terminal. They go on, to the letter, when the node of this computer is lost.

An answer is a function of its request, seed included, so the node that takes the place of a lost one is
asked for the same answer, after the tokens that came already.
"""

import secrets
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import chain

from msgspec.structs import replace

from potluck.api.v1.answer_shapes import ChatChunk, ChatChunkChoice
from potluck.api.v1.request_shapes import ChatCompletionRequest
from potluck.cli.terminal import say
from potluck.client import Client, NodeGoneError
from potluck.errors import ClosedError, PotluckError

SEED_BITS = 63  # as many as the node takes


class Answering:
    """Asks one node, and after it was lost the next one.

    Attributes:
        client: of the node that is asked now.
    """

    def __init__(
        self,
        client: Client,
        *,
        again: Callable[[PotluckError], Client | None],
        load: Callable[[Client], None],
    ) -> None:
        """Ask this node first.

        Args:
            client: of the node.
            again: called with how the node was lost; returns the one in its place, or None if there
                is to be none.
            load: called with a node that was started, to have it load the model.
        """
        self.client = client
        self._again = again
        self._load = load

    def chat(self, request: ChatCompletionRequest) -> Generator[ChatChunk, None, None]:
        """Stream an answer; closing the generator cancels it.

        Raises:
            NodeGoneError: the node was lost too often, or its owner shut it down.
            PotluckError: why there is no answer.
        """
        if request.seed is None:
            request = replace(request, seed=secrets.randbits(SEED_BITS))
        known: list[int] = []
        model = request.model  # no other one goes on with it
        while True:
            asked = replace(request, known_token_ids=list(known), model=model)
            try:
                with closing(self._rest(asked)) as chunks:
                    for chunk in chunks:
                        known += chain.from_iterable(_ids(choice) for choice in chunk.choices)
                        if known:
                            model = chunk.model
                        yield chunk
            except (NodeGoneError, ClosedError) as error:
                self._begin_again(error)
            else:
                return

    def _rest(self, request: ChatCompletionRequest) -> Generator[ChatChunk, None, None]:
        """Yield the chunks that one node has. Text that belongs to no token comes when the answer is whole."""
        held_back: list[ChatChunk] = []
        asked = replace(request, return_token_ids=True)
        with closing(self.client.chat(asked, waits=lambda text: say(f"({text})"))) as chunks:
            for chunk in chunks:
                if any(_has_more(choice) and not _ids(choice) for choice in chunk.choices):
                    held_back.append(chunk)
                    continue
                if any(choice.finish_reason is not None for choice in chunk.choices):
                    yield from held_back
                yield chunk

    def _begin_again(self, lost: NodeGoneError | ClosedError) -> None:
        """Go on with the node that takes the place of the lost one, as soon as it has the model.

        Raises:
            PotluckError: there is none.
        """
        say()  # the answer may have stopped in the middle of a line
        while True:
            client = self._again(lost)
            if client is None:
                raise lost
            self.client = client
            try:
                return self._load(client)
            except NodeGoneError as error:
                lost = error


def _has_more(choice: ChatChunkChoice) -> bool:
    return bool(choice.delta.content or choice.delta.reasoning_content)


def _ids(choice: ChatChunkChoice) -> list[int]:
    return choice.token_ids if isinstance(choice.token_ids, list) else []
