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

    def __init__(self, *, needed: int = 1, most: int = _MOST, max_ratio: float = MAX_RATIO) -> None:
        """Make one without ratios.

        Args:
            needed: so many ratios outweigh the profile.
            most: only so many are kept.
            max_ratio: a higher ratio counts as this one.
        """
        self._needed = needed
        self._max_ratio = max_ratio
        self._ratios: deque[tuple[float, float]] = deque(maxlen=most)  # time in seconds, ratio
        self.lowest: float | None = None  # that was believed; None: none was yet

    def observe(self, ratio: float, now: float) -> None:
        """Add a time in use, as a multiple of the time that the profile predicts."""
        self._ratios.append((now, min(max(ratio, MIN_RATIO), self._max_ratio)))
        if (believed := self.believed(now)) is not None:
            self.lowest = min(believed, self.lowest or believed)

    def forget(self) -> None:
        """Forget all ratios: what made the device slower or faster is over."""
        self._ratios.clear()

    def believed(self, now: float) -> float | None:
        """The ratio in use; None: too few are known."""
        ratios = self._recent(now)
        return median(ratios) if len(ratios) >= self._needed else None

    def factor(self, now: float, usual: float = 1.0) -> float:
        """The factor by which the times of the profile are multiplied.

        The profile itself counts as one time with the usual ratio, and as those that are missing until it
        is outweighed. So, if one is needed, a single time moves the factor by half of the difference, and
        one slow time among several others does not move it.

        Args:
            now: seconds, as of `observe`.
            usual: the ratio in use of devices that nothing is known of.
        """
        ratios = self._recent(now)
        profile = max(1, 2 * self._needed - 1 - len(ratios))
        return median([*[usual] * profile, *ratios])

    def _recent(self, now: float) -> list[float]:
        return [ratio for when, ratio in self._ratios if now - when < MAX_AGE_S]
