"""How fast something comes of which only the bytes are told, and how long it takes yet. Pure but for the clock."""

import time
from collections.abc import Callable

from potluck_app import wording

_FIRST_S = 3.0  # of data, before anything is said: the first pieces come at any pace


class Pace:
    """The average since the first piece that was seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: tuple[float, int] | None = None  # when, and how many bytes were there
        self._seen = 0  # bytes

    def line(self, done: int, total: int) -> str:
        """Return `4 MB/s · 20 s left`; nothing as long as that cannot be said."""
        now = self._clock()
        if self._begun is None or done < self._seen:  # another file has begun
            self._begun = now, done
        self._seen = done
        began, before = self._begun
        if now - began < _FIRST_S or done <= before:
            return ""
        rate = (done - before) / (now - began)
        left = wording.duration((total - done) / rate)
        return f"{wording.size(rate)}/s · {left} left"

    def forget(self) -> None:
        """Begin anew: nothing comes any more."""
        self._begun = None
