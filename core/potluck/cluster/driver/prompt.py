"""How many tokens of a prompt are sent at once beside the answers of others."""

import math
from collections.abc import Sequence

TOKEN_S = 0.24  # that a token of an answer may take through all stages beside a prompt
TILE = 8  # tokens; kernels take as long for fewer


class PromptPace:
    """How many tokens of a prompt are sent at once while other answers get their tokens.

    At each stage a token may have to wait for a chunk, and for the tokens of other answers. So a chunk grows until
    tokens take as long as they may, and shrinks when they take longer. What a chunk of another size takes need not
    be known: a few tokens take nearly as long as many, since the weights are read for them as well.
    """

    def __init__(self) -> None:
        self._size = 2 * TILE
        # Of the tokens since the last chunk. None: no chunk of this size was computed yet.
        self._longest_s: float | None = None

    def note_token(self, seconds: float) -> None:
        """Learn how long a token of an answer took through all stages."""
        if self._longest_s is not None:
            self._longest_s = max(self._longest_s, seconds)

    def note_chunk(self, tokens: int, compute_ms: Sequence[float]) -> None:
        """Learn from a chunk; `compute_ms` has the time of each stage."""
        if tokens != self._size or not compute_ms:
            return  # it was sent with another size, or is the end of a prompt
        if not self._longest_s:
            self._longest_s = 0.0
            return
        tile_s = TILE * sum(compute_ms) / tokens / 1000  # more than one adds to a chunk
        tiles = math.floor((TOKEN_S - self._longest_s) / tile_s)
        self._longest_s = 0.0
        if tiles:
            # A tile more at most, and half of it less: a single token may have been late for another reason.
            less = self._size // 2 // TILE
            self._size, self._longest_s = self._size + TILE * max(min(tiles, 1), -less), None

    def beside_others(self, size: int) -> int:
        """The size of the next chunk in place of `size`, which is for a prompt without others."""
        self._size = min(size, self._size)
        return self._size
