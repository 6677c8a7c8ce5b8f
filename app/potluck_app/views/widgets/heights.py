"""How high the rows of a long page are, and where each begins. Without Qt."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Heights:
    """The heights of rows that lie one below the other, the first at `top`; all in pixels."""

    def __init__(self, top: int) -> None:
        self._heights: list[int] = []
        # Where each row begins, as far as known; behind those of all rows, where the last one ends.
        self._starts = [top]

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, row: int) -> int:
        return self._heights[row]

    def __setitem__(self, row: int, height: int) -> None:
        if height != self._heights[row]:
            self._heights[row] = height
            self._forget_below(row)

    def insert(self, row: int, heights: Iterable[int]) -> None:
        """Put rows before this one."""
        self._heights[row:row] = heights
        self._forget_below(row)

    def remove(self, first: int, stop: int) -> None:
        """Take away the rows from `first` to the one before `stop`."""
        del self._heights[first:stop]
        self._forget_below(first)

    def start(self, row: int) -> int:
        """Return where a row begins."""
        return self._known()[row]

    @property
    def end(self) -> int:
        """Where the last row ends."""
        return self._known()[-1]

    def between(self, top: float, bottom: float) -> tuple[int, int]:
        """Return the first row that reaches into this part of the page, and the one after the last."""
        starts, count = self._known(), len(self)
        first, stop = bisect_right(starts, top) - 1, bisect_left(starts, bottom)
        return min(max(first, 0), count), min(stop, count)

    def _forget_below(self, row: int) -> None:
        del self._starts[row + 1 :]

    def _known(self) -> list[int]:
        if len(self._starts) <= len(self._heights):
            rest = self._heights[len(self._starts) - 1 :]
            self._starts.extend(accumulate(rest, initial=self._starts.pop()))
        return self._starts
