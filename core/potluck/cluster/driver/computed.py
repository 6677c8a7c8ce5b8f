"""In which steps the tokens of a conversation were computed.

A library's matrix product may give a row other last bits when it is computed alone than among
others. A replay that repeats the same steps gives the same caches, and so the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A step of several tokens: those from position `begin` to `end`, followed by `cut`.

    The caches of the tokens `cut` were trimmed away afterwards, for another turn.
    """

    begin: int
    end: int
    cut: tuple[int, ...] = ()


class ComputedSteps:
    """The steps of several tokens, by the position where each begins; all other tokens were alone.

    Attributes:
        end: the tokens before this position were computed.
    """

    def __init__(self) -> None:
        self.end = 0
        self._chunks: dict[int, Chunk] = {}

    def add(self, begin: int, end: int) -> None:
        """Note a step. What is noted already stays as it is: this step repeats it."""
        begin = max(begin, self.end)
        if end - begin > 1:
            self._chunks[begin] = Chunk(begin, end)
        self.end = max(self.end, end)

    def copy(self) -> "ComputedSteps":
        """The same steps, for a conversation that takes over what was computed in them."""
        other = ComputedSteps()
        other.end, other._chunks = self.end, dict(self._chunks)
        return other

    def at(self, position: int) -> Chunk:
        """The step that begins at a position before `end`; a single token is a chunk of one."""
        return self._chunks.get(position) or Chunk(position, position + 1)

    def start(self, position: int) -> int:
        """Where the step begins that computed the token at this position."""
        inside = (c.begin for c in self._chunks.values() if c.begin <= position < c.end)
        return next(inside, position)

    def trim(self, position: int, tokens: Sequence[int]) -> None:
        """Forget the steps from a position on. A step that begins before it is kept as a whole.

        Args:
            position: the tokens from here on were trimmed away.
            tokens: all tokens of the conversation before that.
        """
        self.end = min(self.end, position)
        chunks, self._chunks = self._chunks.values(), {}
        for chunk in chunks:
            if chunk.end > position > chunk.begin:
                cut = (*tokens[position : chunk.end], *chunk.cut)
                self._chunks[chunk.begin] = Chunk(chunk.begin, position, cut)
            elif chunk.end <= position:
                self._chunks[chunk.begin] = chunk
