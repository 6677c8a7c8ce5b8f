"""How long the tokens of answers take: in each stage, and on the way between the computers.

Only tokens that are computed alone count, since the others are computed together, or wait for each other.
"""

import threading
from collections import deque
from collections.abc import Sequence

WINDOW_S = 5.0  # of computing: so long a mean does not depend on one moment
_LEAST = 8  # tokens that a time is taken of


class TokenTimes:
    """The times of the last tokens. Its methods may be called in any thread."""

    def __init__(self, stages: int) -> None:
        self._lock = threading.Lock()  # guards all that follows
        self._hops_ms: deque[float] = deque(maxlen=_LEAST)
        self._stages_ms = [0.0] * stages  # sums since the last mean
        self._tokens = 0  # in these sums
        self._seconds = 0.0  # that these took
        self.last_s = 0.0  # that the last one took

    def note(self, seconds: float, compute_ms: Sequence[float]) -> None:
        """Add a token: how long it took, and what of it in each stage."""
        if len(compute_ms) != len(self._stages_ms):
            return
        with self._lock:
            self.last_s = seconds
            self._hops_ms.append(1000 * seconds - sum(compute_ms))
            for stage, ms in enumerate(compute_ms):
                self._stages_ms[stage] += ms
            self._tokens += 1
            self._seconds += seconds

    def hops_ms(self) -> float | None:
        """How long a token is on the way between the computers, of the last few tokens.

        The shortest time counts, since a thread may be woken late. None: too few tokens came since
        the last call.
        """
        with self._lock:
            if len(self._hops_ms) < _LEAST:
                return None
            shortest = min(self._hops_ms)
            self._hops_ms.clear()
        return shortest

    def stages_ms(self) -> list[float] | None:
        """How long a token takes in each stage: the mean since this was last known.

        The mean counts, since a computer that does something else beside computes some tokens at full speed.
        None: the tokens since then took less than `WINDOW_S` together.
        """
        with self._lock:
            if self._seconds < WINDOW_S or self._tokens < _LEAST:
                return None
            means = [total / self._tokens for total in self._stages_ms]
            self._stages_ms = [0.0] * len(self._stages_ms)
            self._tokens, self._seconds = 0, 0.0
        return means
