"""The order in which files hold the rows of queries and keys.

Rope turns pairs of values of a head. In some families a pair is two halves' values of one place, (i, i + n / 2); in
others, and in files of llama.cpp, it is two neighbours, (2i, 2i + 1). Here it is always the halves: where a file has
neighbours, its rows are put into that order when they are loaded. Scores are sums over a head's values, so they do not
depend on the order as long as queries and keys have the same; kernels, caches and GPUs know one rope alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """Rows of heads in which neighbours are the pairs that rope turns."""

    head: int  # rows of a head
    first: int = 0  # of them, the first that rope turns
    count: int  # how many it turns, from there on

    def __post_init__(self) -> None:
        assert self.count % 2 == 0
        assert 0 <= self.first <= self.head - self.count

    @property
    def order(self) -> list[int]:
        """For each row of a head, as it is computed with, which row of the file it is."""
        end = self.first + self.count
        evens, odds = range(self.first, end, 2), range(self.first + 1, end, 2)
        return [*range(self.first), *evens, *odds, *range(end, self.head)]
