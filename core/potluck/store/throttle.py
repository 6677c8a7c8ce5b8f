"""Limits how fast this computer sends weights: one token bucket for all of its transfers."""

import asyncio
from typing import Final

MBIT: Final = 1_000_000 // 8  # bytes per second of 1 Mbit/s
BURST_S: Final = 0.25  # of the rate that may be sent at once after a pause
STEP_S: Final = 0.5  # the longest sleep: a limit that changes meanwhile holds soon
LEAST_CHUNK: Final = 16 << 10  # bytes; less would be mostly headers


class Throttle:
    """Lets bytes pass at a rate that may change at any time. Transfers are served in turn."""

    def __init__(self, mbit: float | None = None) -> None:
        """Make a throttle.

        Args:
            mbit: Mbit/s of all transfers together; None: no limit.
        """
        self._rate: float | None = None  # bytes per second
        self._tokens = 0.0  # bytes that may pass now; below 0: the last ones were too many
        self._filled = 0.0  # time at which the tokens were counted
        self._turn = asyncio.Lock()
        self.limit(mbit)

    def limit(self, mbit: float | None) -> None:
        """Set another rate, also for transfers that are under way."""
        self._rate = None if mbit is None else mbit * MBIT

    def rate(self, link_rate: float | None) -> float | None:
        """Bytes per second over a link of this rate; None: unknown, and there is no limit."""
        rates = [rate for rate in (link_rate, self._rate) if rate is not None]
        return min(rates, default=None)

    def chunk(self, most: int) -> int:
        """How many of at most these bytes to send at once, so that the rate is even."""
        if self._rate is None:
            return most
        return max(min(most, LEAST_CHUNK), min(most, int(self._rate * BURST_S)))

    async def take(self, nbytes: int) -> None:
        """Wait until so many bytes may be sent."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            while (rate := self._rate) is not None:
                now = loop.time()
                filled = self._tokens + (now - self._filled) * rate
                self._tokens, self._filled = min(filled, rate * BURST_S), now
                if self._tokens > 0:
                    self._tokens -= nbytes
                    return
                await asyncio.sleep(min(STEP_S, 1e-3 - self._tokens / rate))
