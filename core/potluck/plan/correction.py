"""How much longer a device takes in real answers than its profile predicts.

A profile is measured on an idle device and never changes. The times of answers are kept beside it,
as ratios to the prediction of this unchanged profile. So no ratio depends on an earlier one.
"""

from collections import deque
from statistics import median

MIN_RATIO, MAX_RATIO = 0.5, 4.0  # limits: a ratio outside has other causes than the device's speed
MAX_AGE_S = 1800.0  # older ratios do not count: a game may have ended, a laptop is plugged in
_MOST = 15  # only so many answers are kept


class Correction:
    """The ratios of the last answers, and their median."""

    def __init__(self) -> None:
        self._ratios: deque[tuple[float, float]] = deque(maxlen=_MOST)  # time in seconds, ratio

    def observe(self, ratio: float, now: float) -> None:
        """Add the time of one answer, as a multiple of the time that the profile predicts."""
        self._ratios.append((now, min(max(ratio, MIN_RATIO), MAX_RATIO)))

    def factor(self, now: float) -> float:
        """The factor by which the times of the profile are multiplied.

        The profile itself counts as one answer with ratio 1. So a single answer moves the factor by
        half of the difference, and one slow answer among several others does not move it.
        """
        return median([1.0, *(ratio for when, ratio in self._ratios if now - when < MAX_AGE_S)])
