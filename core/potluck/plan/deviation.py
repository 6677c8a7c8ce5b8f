"""Whether what is measured in use still fits what is expected.

A time in use is not compared with the time that was measured at rest, but with the one that was
normal in use: what computes beside a link makes its messages wait.
"""

from potluck.plan.cost import LinkCost

FACTOR = 1.5  # a time deviates if it is this much longer or shorter
LEAST_MS = 2.0  # and differs by more than this: a loaded computer wakes a thread so late
REST_S = 30.0  # between two deviations that are believed, since each one is measured at once
_SAMPLES = 2  # in a row; a single one may be an accident


class Deviation:
    """Compares the times in use with the normal one, and says when they are others for good."""

    def __init__(self, normal_ms: float | None = None) -> None:
        """Make one that expects a time; None: the first time in use is the normal one."""
        self._normal_ms = normal_ms
        self._deviating = 0  # samples in a row
        self._rests_until = float("-inf")

    def observe(self, ms: float, now: float) -> bool:
        """Add a time in use.

        Args:
            ms: the time.
            now: seconds of any clock.

        Returns:
            Whether it deviates, and the time before it too. Then this time is normal from now on.
        """
        if self._normal_ms is None:
            self._normal_ms = ms
        shorter, longer = sorted((ms, self._normal_ms))
        is_deviating = longer > FACTOR * shorter and longer - shorter > LEAST_MS
        self._deviating = self._deviating + 1 if is_deviating else 0
        if self._deviating < _SAMPLES or now < self._rests_until:
            return False
        self._normal_ms, self._deviating, self._rests_until = ms, 0, now + REST_S
        return True


def has_changed(before: LinkCost | None, after: LinkCost) -> bool:
    """Whether a link measured again costs something else than before."""
    if before is None:
        return True
    slower, faster = sorted((before.bytes_per_s, after.bytes_per_s))
    shorter, longer = sorted((before.rtt_ms, after.rtt_ms))
    return faster > FACTOR * slower or (longer > FACTOR * shorter and longer - shorter > LEAST_MS)
