"""Leave alone what failed, twice as long after each failure (exponential backoff), until it has worked."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_S = 300.0  # that something is left alone: by then a person may have repaired it

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Failures:
    pause_s: float
    until: float


class Backoff(Generic[_K]):
    """How long each of some things is left alone.

    Args:
        first_s: seconds after the first failure; doubled with each more, up to `most_s`.
        most_s: the longest, in seconds.
        clock: seconds.
    """

    def __init__(
        self,
        first_s: float,
        *,
        most_s: float = MOST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_s, self._most_s, self._clock = first_s, most_s, clock
        self._failed: dict[_K, _Failures] = {}

    def failed(self, one: _K) -> None:
        """Note that one has failed, and leave it alone from now on."""
        before = self._failed.get(one)
        pause_s = self._first_s if before is None else min(2 * before.pause_s, self._most_s)
        self._failed[one] = _Failures(pause_s, self._clock() + pause_s)

    def worked(self, one: _K) -> None:
        """Forget the failures of one."""
        self._failed.pop(one, None)

    def is_due(self, one: _K) -> bool:
        """Whether one may be tried."""
        failed = self._failed.get(one)
        return failed is None or self._clock() >= failed.until

    def clear(self) -> None:
        """Forget all failures."""
        self._failed.clear()
