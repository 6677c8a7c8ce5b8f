"""Answers on the terminal. They go on, to the letter, when the node of this computer is lost.

An answer is a function of its request and of the request's id, so the node that takes the place of a
lost one is asked for the same answer, after the tokens that came already.
"""

import secrets
from collections.abc import Callable, Generator
from contextlib import closing

from msgspec.structs import replace

from potluck.api.openai import ChatChunk, ChatCompletionRequest
from potluck.cli.terminal import say
from potluck.client import Client, NodeGoneError
from potluck.errors import ClosedError, PotluckError


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
        request_id = f"chat_{secrets.token_hex(12)}"
        known: list[int] = []
        while True:
            try:
                yield from self._rest(request, request_id, known)
            except (NodeGoneError, ClosedError) as error:
                self._begin_again(error)
            else:
                return

    def _rest(
        self, request: ChatCompletionRequest, request_id: str, known: list[int]
    ) -> Generator[ChatChunk, None, None]:
        """Yield what follows the known tokens, and add the tokens that come to them."""
        asked = replace(request, return_token_ids=True, known_token_ids=list(known))
        held_back: list[ChatChunk] = []  # text that is no token's: known only when the answer ends
        chunks = self.client.chat(asked, request_id=request_id, waits=lambda text: say(f"({text})"))
        with closing(chunks):
            for chunk in chunks:
                for choice in chunk.choices:
                    ids = choice.token_ids if isinstance(choice.token_ids, list) else []
                    known += ids
                    if choice.delta.content and not ids:
                        held_back.append(chunk)
                        break
                    if choice.finish_reason is not None:
                        yield from held_back
                else:
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
