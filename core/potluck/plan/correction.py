"""How much longer a device takes in answers than its profile says.

A profile is measured on an idle device and never changes. What answers measure is kept beside it, as
ratios to what this same profile predicts, so one answer never depends on what was learnt from another.
"""

from collections import deque
from statistics import median

MIN_RATIO, MAX_RATIO = 0.5, 4.0  # beyond, something else than the device's speed was measured
MAX_AGE_S = 1800.0  # a game ends, a laptop is plugged in
_MOST = 15  # answers that count


class Correction:
    """The ratios that the last answers measured, and their median."""

    def __init__(self) -> None:
        self._ratios: deque[tuple[float, float]] = deque(maxlen=_MOST)  # time in seconds, ratio

    def observe(self, ratio: float, now: float) -> None:
        """Add what one answer took, as a multiple of what the profile predicts."""
        self._ratios.append((now, min(max(ratio, MIN_RATIO), MAX_RATIO)))

    def factor(self, now: float) -> float:
        """What the times of the profile are to be multiplied by.

        The profile itself counts as one answer: a single answer moves the factor by half of the
        difference, and one answer in a busy moment among others does not move it at all.
        """
        return median([1.0, *(ratio for when, ratio in self._ratios if now - when < MAX_AGE_S)])
