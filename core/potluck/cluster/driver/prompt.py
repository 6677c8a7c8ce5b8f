"""A prompt: whether there is room for it, and how many of its tokens are sent at once."""

from collections.abc import Sequence

from potluck.cluster.driver.pipeline import Room
from potluck.errors import PromptError

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


def check_prompt(tokens: Sequence[int], context: int, room: Room | None) -> None:
    """Check that these tokens, and one after them, fit.

    Args:
        tokens: of the conversation.
        context: most tokens of a conversation.
        room: of the computer whose memory decides that; None: the plan does.

    Raises:
        PromptError: they do not, or there are none.
    """
    count = len(tokens)
    if not tokens:
        raise PromptError("The prompt is empty: there is nothing to continue.")
    if count < context:
        return
    if room is not None:
        raise PromptError(
            f"The prompt has {count} tokens, and {room.name} has memory for the cache of"
            f" {room.tokens}. Shorten it, free memory there, or load the model anew in a smaller"
            " scheme.",
            tokens=count,
            context=context,
        )
    raise PromptError(
        f"The prompt has {count} tokens and the context holds {context}."
        " Shorten it, start a new conversation, or load the model with a larger context.",
        tokens=count,
        context=context,
    )
