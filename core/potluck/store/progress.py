"""The progress of a transfer: bytes done, and current speed."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

WINDOW_S = 5.0  # long enough to smooth Wi-Fi's bursts, short enough to show a pulled cable soon
SAMPLE_S = 0.1  # between two samples: 50 in a window

Clock: TypeAlias = Callable[[], float]
"""Returns seconds since some fixed moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """A snapshot of a transfer, equal at both ends. Bytes that were there before do not count."""

    sent: int
    total: int
    bytes_per_s: float  # over the last WINDOW_S


OnProgress: TypeAlias = Callable[[TransferProgress], None]


class TransferMeter:
    """Counts the bytes of one transfer, and reports its progress.

    Args:
        total: bytes to transfer; it grows when a tensor is sent again.
    """

    def __init__(self, total: int, clock: Clock, progress: OnProgress | None) -> None:
        self.total, self.sent = total, 0
        self._clock, self._progress = clock, progress
        self._samples = deque([(clock(), 0)])  # (time, bytes until then)

    def add(self, nbytes: int) -> None:
        self.sent += nbytes
        now = self._clock()
        samples = self._samples
        if now - samples[-1][0] >= SAMPLE_S:
            samples.append((now, self.sent))
        # The first sample is kept just outside the window, so that a pause lowers the speed.
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()
        if self._progress:
            self._progress(self._state(now))

    def _state(self, now: float) -> TransferProgress:
        since, before = self._samples[0]
        rate = (self.sent - before) / (now - since) if now > since else 0.0
        return TransferProgress(
            sent=self.sent,
            total=self.total,
            bytes_per_s=rate,
        )
