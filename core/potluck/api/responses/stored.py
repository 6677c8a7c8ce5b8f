"""Responses that a later request may go on from, as long as there is room for them."""

from collections import OrderedDict
from dataclasses import dataclass

from potluck.api.http.endpoint import RequestError
from potluck.api.prompts import ChatTurn
from potluck.api.responses.shapes import ModelResponse

MOST = 1000  # responses
MOST_CHARACTERS = 32 << 20  # of their conversations


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, and the conversation up to its end, without the instructions."""

    response: ModelResponse
    turns: tuple[ChatTurn, ...]

    @property
    def size(self) -> int:
        """Characters of the conversation, and bytes of its pictures."""
        calls = sum(len(call.arguments) for turn in self.turns for call in turn.calls)
        calls += sum(len(picture.data) for turn in self.turns for picture in turn.pictures)
        return calls + sum(len(turn.content) + len(turn.reasoning) for turn in self.turns)


class StoredResponses:
    """The newest responses of this server; a restart forgets them."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._characters = 0

    def add(self, stored: Stored) -> None:
        """Keep a response, and forget the oldest ones that there is no room for."""
        self._stored[stored.response.id] = stored
        self._characters += stored.size
        while len(self._stored) > self._most or self._characters > self._most_characters:
            self._characters -= self._stored.popitem(last=False)[1].size

    def get(self, id_: str, param: str | None = None) -> Stored:
        """A response.

        Raises:
            RequestError: it is not here.
        """
        if (found := self._stored.get(id_)) is None:
            raise RequestError(
                404,
                f"There is no response {id_!r} here. It was not stored, or is too old, or Potluck was"
                " restarted: send the whole conversation.",
                param=param,
            )
        return found

    def remove(self, id_: str) -> None:
        """Forget a response.

        Raises:
            RequestError: it is not here.
        """
        self._characters -= self.get(id_).size
        del self._stored[id_]
