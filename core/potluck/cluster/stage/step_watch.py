"""Tell a step that hangs from one that is slow, by how long such steps took before."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_S = 180.0  # a step of a kind that was not done before: it may compile, on a slow computer
FIRST_ROWS = (
    512  # of a first picture, whose tower takes as long as thousands of tokens: more have more time
)
ROOM_S = 180.0  # for a prompt's cache
LEAST_S = 4.0  # a step is not stuck before, however short such steps are; nor is a control message
FACTOR = 20.0  # times as long as the slowest step of its kind so far; by token, in a chunk


class StepWatch:
    """The thread that computes calls `begin` and `end`; any thread may ask `is_stuck`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0  # that were begun
        self._clock = clock
        self._slowest_s: dict[str, float] = {}  # of one token, by the kind of step
        self._under_way: tuple[str, int, float] | None = None  # kind, tokens, begin

    def begin(self, kind: str, tokens: int) -> None:
        """A step of so many tokens begins.

        Of the kinds, "control" is a message that computes nothing, as "rows" of a picture, and "room" one that takes memory: how long that
        takes depends on how much is free, and not on how long it took before.
        """
        self.steps += 1
        self._under_way = (kind, tokens, self._clock())

    def end(self) -> None:
        """The step that began last has ended, or failed."""
        assert self._under_way is not None
        (kind, tokens, began), self._under_way = self._under_way, None
        seconds = (self._clock() - began) / tokens
        if seconds > self._slowest_s.get(kind, 0.0):
            self._slowest_s[kind] = seconds

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait within this block for another computer, which computes a part of the same step.

        That is no time of the step, and whoever waits is not stuck: who is, is found by its own watch.
        """
        assert self._under_way is not None
        (kind, tokens, began), self._under_way = self._under_way, None
        waits_since = self._clock()
        try:
            yield
        finally:
            self._under_way = kind, tokens, began + self._clock() - waits_since

    @property
    def is_stuck(self) -> bool:
        """Whether a step is under way for much longer than it should take."""
        if (step := self._under_way) is None:
            return False
        kind, tokens, began = step
        return self._clock() - began > self._allowed_s(kind, tokens)

    def _allowed_s(self, kind: str, tokens: int) -> float:
        if kind in ("control", "rows"):
            return LEAST_S
        if kind == "room":
            return ROOM_S
        slowest_s = self._slowest_s.get(kind)
        if slowest_s is None:
            return FIRST_S * max(1.0, tokens / FIRST_ROWS) if kind == "picture" else FIRST_S
        return max(LEAST_S, FACTOR * tokens * slowest_s)
