"""How much longer a device takes in real answers than its profile predicts.

A profile is measured on an idle device and never changes. The times in use are kept beside it,
as ratios to the prediction of this unchanged profile. So no ratio depends on an earlier one.
"""

from collections import deque
from statistics import median

MIN_RATIO, MAX_RATIO = 0.5, 4.0  # limits: a ratio outside has other causes than the device's speed
MAX_AGE_S = 1800.0  # older ratios do not count: a game may have ended, a laptop is plugged in
_MOST = 15  # only so many ratios are kept


class Correction:
    """The ratios of the last times in use, and their median."""

    def __init__(self, *, needed: int = 1, most: int = _MOST) -> None:
        """Make one without ratios.

        Args:
            needed: so many ratios outweigh the profile.
            most: only so many are kept.
        """
        self._needed = needed
        self._ratios: deque[tuple[float, float]] = deque(maxlen=most)  # time in seconds, ratio

    def observe(self, ratio: float, now: float) -> None:
        """Add a time in use, as a multiple of the time that the profile predicts."""
        self._ratios.append((now, min(max(ratio, MIN_RATIO), MAX_RATIO)))

    def forget(self) -> None:
        """Forget all ratios: what made the device slower or faster is over."""
        self._ratios.clear()

    def factor(self, now: float) -> float:
        """The factor by which the times of the profile are multiplied.

        The profile itself counts as one time with ratio 1, and as those that are missing until it is
        outweighed. So, if one is needed, a single time moves the factor by half of the difference, and
        one slow time among several others does not move it.
        """
        ratios = [ratio for when, ratio in self._ratios if now - when < MAX_AGE_S]
        profile = max(1, 2 * self._needed - 1 - len(ratios))
        return median([*[1.0] * profile, *ratios])
