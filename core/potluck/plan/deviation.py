"""Whether what is measured in use still fits what is expected.

A time in use is not compared with the time that was measured at rest, but with the one that was
normal in use: what computes beside a link makes its messages wait.
"""

from potluck.plan.cost import LinkCost

FACTOR = 1.5  # a time deviates if it is this much longer or shorter
LEAST_MS = 2.0  # and differs by more than this: a loaded computer wakes a thread so late
REST_S = 30.0  # between two deviations that are believed, since each one is measured at once
_SAMPLES = 2  # in a row; a single one may be an accident

SLOWER = 2.0  # a device is slow if it takes so many times as long as it was planned with
QUICKER = 1.5  # and quick again if it takes so many times less
WEIGHED_S = 120.0  # a plan is not weighed more often because of one device


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


class Pace:
    """The factor that a device was planned with, and when it is another one for good.

    Between slow and quick again is a gap, and between two changes a rest, so that layers do not move to and fro.

    Attributes:
        is_slow: whether it became slow, and was not nearly as quick as usual since.
    """

    def __init__(self) -> None:
        self.is_slow = False
        self._planned = 1.0
        self._rests_until = float("-inf")

    def is_planned_with(self, factor: float) -> None:
        """A plan was made with this factor of the device."""
        self._planned = factor

    def observe(self, factor: float, now: float) -> bool:
        """Whether the plan is to be weighed again with this factor, which then is the planned one.

        Args:
            factor: how many times as long as usual the device takes.
            now: seconds of any clock.
        """
        self.is_slow = factor >= (QUICKER if self.is_slow else SLOWER)
        slower, quicker = factor >= SLOWER * self._planned, factor * QUICKER <= self._planned
        if not (slower or quicker) or now < self._rests_until:
            return False
        self._planned, self._rests_until = factor, now + WEIGHED_S
        return True


def has_changed(before: LinkCost | None, after: LinkCost) -> bool:
    """Whether a link measured again costs something else than before."""
    if before is None:
        return True
    slower, faster = sorted((before.bytes_per_s, after.bytes_per_s))
    shorter, longer = sorted((before.rtt_ms, after.rtt_ms))
    return faster > FACTOR * slower or (longer > FACTOR * shorter and longer - shorter > LEAST_MS)
