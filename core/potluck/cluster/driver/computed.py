"""In which steps the tokens of a conversation were computed.

A library's matrix product may give a row other last bits when it is computed alone than among
others. A replay that repeats the same steps gives the same caches, and so the same answer.
"""

import hashlib
from collections.abc import Sequence

from potluck.cluster.driver.payload import token_payload
from potluck.wire.activation_messages import PREFIX_BYTES, PREFIX_TOKENS

_SLICE = 256  # tokens


class ComputedSteps:
    """The steps of several tokens; all other tokens were alone.

    Attributes:
        end: the tokens before this position were computed.
    """

    def __init__(self) -> None:
        self.end = 0
        self._ends: dict[int, int] = {}  # of the steps of several tokens, by where each begins

    def add(self, begin: int, end: int) -> None:
        """Note a step. What is noted already stays as it is: this step repeats it."""
        begin = max(begin, self.end)
        if end - begin > 1:
            self._ends[begin] = end
        self.end = max(self.end, end)

    def copy(self) -> "ComputedSteps":
        """The same steps, for a conversation that takes over what was computed in them."""
        other = ComputedSteps()
        other.end, other._ends = self.end, dict(self._ends)
        return other

    def end_of(self, begin: int) -> int:
        """Where the step ends that begins at this position, which is before `end`."""
        return self._ends.get(begin, begin + 1)

    def start(self, position: int) -> int:
        """Where the step begins that computed the token at this position; itself, if none did."""
        inside = (begin for begin, end in self._ends.items() if begin <= position < end)
        return next(inside, position)

    def trim(self, position: int) -> None:
        """Forget the steps from a position on, and of a step that goes beyond it the rest."""
        self.end = min(self.end, position)
        ends = self._ends.items()
        self._ends = {begin: min(end, position) for begin, end in ends if begin < position - 1}


def prefix_digests(tokens: Sequence[int]) -> bytes:
    """One digest for each `PREFIX_TOKENS` tokens, of these and all before them, one behind the other."""
    digests, last = bytearray(), b""
    for begin in range(0, len(tokens) - PREFIX_TOKENS + 1, PREFIX_TOKENS):
        block = token_payload(tokens[begin : begin + PREFIX_TOKENS])
        last = hashlib.blake2b(last + block, digest_size=PREFIX_BYTES).digest()
        digests += last
    return bytes(digests)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens at their beginning two lists have in common."""
    most = min(len(a), len(b))
    # Slices are compared without a step of Python for each of many thousand tokens.
    begin = next(
        (i for i in range(0, most, _SLICE) if a[i : i + _SLICE] != b[i : i + _SLICE]), most
    )
    return next((i for i in range(begin, most) if a[i] != b[i]), most)
