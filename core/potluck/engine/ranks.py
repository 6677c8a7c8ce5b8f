"""What ranks of a group do together: they sum what each has computed with its share of a layer.

Every rank adds in the order of the ranks, ((r0 + r1) + r2) + …, in f32. So all have the same bits afterwards, choose
the same experts and the same token, and their caches stay equal. Every rank computes the same steps in the same
chunks, so that its sums are those of the others.
"""

from typing import Protocol

from torch import Tensor


class Exchange(Protocol):
    """Sums numbers over the ranks of a group.

    It never waits for ever: a rank that dies, hangs or fails is an error in all others, within a deadline.
    After an error the sums of ranks no longer belong together, so each further call fails at once.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int:
        """How many ranks there are."""
        ...

    def sum(self, rows: Tensor) -> None:
        """Replace (T, D), f32, contiguous and on this rank's device, by the sum over all ranks.

        Raises:
            RankLostError: another rank did not take part.
        """
        ...

    def sum_memory(self, numbers: memoryview) -> None:
        """The same for numbers of f32 in memory (format `f`), of one token, without any operator of torch."""
        ...

    def abort(self) -> None:
        """Fail all calls of all ranks, those that wait too: this rank cannot go on. Any thread may call it."""
        ...


def summed(rows: Tensor, exchange: Exchange | None) -> Tensor:
    """(T, D) of this rank → that of all ranks; what comes in may be overwritten."""
    if exchange is None:
        return rows
    numbers = rows.float().contiguous()
    exchange.sum(numbers)
    return numbers.to(rows.dtype)
