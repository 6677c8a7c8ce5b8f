"""How many tokens of a prompt are sent at once beside the answers of others."""

from collections.abc import Sequence

_STALL_MS = 70.0  # of one stage, while it computes a chunk and others wait for their next token
_TILE = 8  # tokens; kernels take as long for fewer


class PromptPace:
    """How many tokens of a prompt are sent at once while other answers get their tokens.

    A chunk holds up the others for as long as a stage computes it, at each stage. So it is as small as the
    slowest stage needs, by the times of the chunks before.
    """

    def __init__(self) -> None:
        self._token_ms: float | None = None  # of a token in a chunk, on the slowest stage

    def note(self, tokens: int, compute_ms: Sequence[float]) -> None:
        """Learn from a chunk; `compute_ms` has the time of each stage."""
        if tokens >= _TILE and compute_ms:
            self._token_ms = max(compute_ms) / tokens

    def beside_others(self, size: int) -> int:
        """The size of the next chunk in place of `size`, which is for a prompt without others."""
        if self._token_ms is None:
            return min(size, 2 * _TILE)
        return min(size, max(1, int(_STALL_MS / self._token_ms / _TILE)) * _TILE)
