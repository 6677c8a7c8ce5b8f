"""An event loop whose time passes at once: a sleep ends when nothing else can happen before it."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Idle(selectors.DefaultSelector):
    """Waits for nothing: what a loop would wait for, it adds to the time that passed."""

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
    """Run a coroutine for which time is `loop.time()`; it may not use threads or sockets."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(work)
