"""An event loop that skips waiting: a sleep ends as soon as nothing else can happen before it."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Idle(selectors.DefaultSelector):
    """A selector that never waits: it adds the timeout to the passed time instead."""

    passed = 0.0  # seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("Nothing will ever happen any more.")
        if not ready and timeout:
            self.passed += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.passed


def run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a clock that is `loop.time()`. It may not use threads or sockets."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(work)
