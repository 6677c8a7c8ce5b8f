"""Bytes that are taken out of a larger content at regular places, one run after the other."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRuns:
    """Of each of `count` periods of the larger content, the runs (first byte, byte after the last), in their order."""

    period: int
    count: int
    runs: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        return self.count * self._each

    @property
    def _each(self) -> int:
        return sum(stop - start for start, stop in self.runs)

    def name(self, digest: str) -> str:
        """What these bytes of the content of this digest are called: equal names, equal bytes."""
        runs = ",".join(f"{start}-{stop}" for start, stop in self.runs)
        return f"{digest} {self.count}*{self.period}:{runs}"

    def spans(self, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Where so many bytes from `offset` on are in the larger content: places and lengths, in order."""
        nbytes = min(nbytes, self.nbytes - offset)
        if nbytes <= 0:
            return
        number, skipped = divmod(offset, self._each)
        while nbytes > 0:
            for start, stop in self.runs:
                length = min(stop - start - skipped, nbytes)
                if length > 0:
                    yield number * self.period + start + skipped, length
                    nbytes -= length
                skipped = max(0, skipped - (stop - start))
            number += 1


def places(
    start: int, runs: ByteRuns | None, offset: int, nbytes: int
) -> Iterator[tuple[int, int]]:
    """Where so many bytes from `offset` on of a content are in a file: places and lengths, in order.

    The content begins at `start`; `runs` are the bytes that it consists of, None: all that follow.
    """
    if runs is None:
        yield start + offset, nbytes
        return
    for place, length in runs.spans(offset, nbytes):
        yield start + place, length
