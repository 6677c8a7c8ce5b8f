"""What an answer has to follow, as its conversation sees it."""

from collections.abc import Sequence
from typing import Protocol


class Grammar(Protocol):
    """The grammar of one answer. Its state is that after the tokens that were given out.

    Attributes:
        allowed: the tokens that may come next, as in `Sampling.allowed`.
        is_over: whether the answer is complete and nothing may follow.
    """

    allowed: bytes | tuple[int, ...] | None
    is_over: bool

    async def push(self, tokens: Sequence[int]) -> None:
        """Take the next tokens of the answer."""
        ...

    def close(self) -> None:
        """Forget it, at the end of the answer."""
        ...
