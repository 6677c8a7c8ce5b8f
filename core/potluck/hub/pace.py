"""How fast a download takes bytes at most, so that the connection of the home is left for other things."""

import threading
import time
from collections.abc import Callable
from typing import Final

MB: Final = 1_000_000  # bytes
_STEP_S: Final = 0.5  # the longest sleep: a limit that changes meanwhile holds soon


class Pace:
    """Makes one thread wait after the bytes that it took; another may change the limit.

    Args:
        bytes_per_s: the limit; None: there is none.
        clock: in seconds.
        sleep: waits for so many seconds, or until it is set.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._changed = threading.Event()
        self._sleep = sleep if sleep is not None else self._changed.wait
        self._due = clock()  # when all bytes that were taken were due

    def limit(self, bytes_per_s: float | None) -> None:
        """Set another limit, also for who waits now."""
        self._rate, self._due = bytes_per_s, self._clock()
        self._changed.set()

    def took(self, nbytes: int) -> None:
        """Wait until so many bytes were due."""
        self._changed.clear()
        if (rate := self._rate) is None:
            return
        # What was not used is lost: after a pause of the Hub it goes on at the same rate.
        self._due = max(self._due, self._clock()) + nbytes / rate
        while (left := self._due - self._clock()) > 0 and not self._changed.is_set():
            self._sleep(min(left, _STEP_S))
