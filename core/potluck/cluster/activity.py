"""Which programs need the node now, since when none does, and a revision that counts changes."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import inf

from potluck.api.backend import Holder


class Activity:
    """Counts the programs that need the node, which ends without them.

    `touch` wakes all who wait for a change.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        let_go: Callable[[Holder], None] = lambda _: None,
    ) -> None:
        """`let_go` is called when the last holder of a kind is gone."""
        self._clock = clock
        self._let_go = let_go
        self._holders: Counter[Holder] = Counter()
        self._last_use = clock()
        self._revision = 0
        self._touched = asyncio.Event()  # the next change

    # --- holders

    @contextmanager
    def hold(self, holder: Holder) -> Generator[None, None, None]:
        """Keep the node alive while the context is open."""
        self._holders[holder] += 1
        try:
            yield
        finally:
            self._holders[holder] -= 1
            self._last_use = self._clock()
            if not self._holders[holder]:
                self._let_go(holder)

    def is_held(self, by: Holder | None = None) -> bool:
        """Whether there is a holder; with `by`, whether there is one of this kind."""
        return self._holders[by] > 0 if by is not None else self._holders.total() > 0

    def idle_s(self) -> float:
        """How long there has been no holder, in seconds; 0 while there is one."""
        return 0.0 if self.is_held() else self._clock() - self._last_use

    def use(self) -> None:
        """Record a use of the node without a holder: `idle_s` begins at 0 again."""
        self._last_use = self._clock()

    def done(self) -> None:
        """Record that nobody needs the node any more: `idle_s` is infinite until the next use."""
        self._last_use = -inf

    # --- changes

    @property
    def revision(self) -> int:
        return self._revision

    def touch(self) -> None:
        """Count a change of the state that clients show, and wake those who wait for one."""
        self._revision += 1
        self._touched.set()
        self._touched = asyncio.Event()

    async def changed(self, since: int) -> int:
        """Wait until the revision is not `since`, and return it."""
        while self._revision == since:
            await self._touched.wait()
        return self._revision
