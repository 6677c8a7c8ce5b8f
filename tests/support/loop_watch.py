"""Finds what blocks an event loop: a callback that computes for long, while nothing else runs."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

LIMIT_S = 0.5  # heartbeats are due every 0.9 s, and nothing in a node should come near that


@contextmanager
def watching(limit_s: float = LIMIT_S) -> Generator[list[str]]:
    """Collect the callbacks of every event loop that take longer.

    Counted is the CPU time of the loop's own thread: on a busy machine everything takes long, and a
    callback that only waits for its turn there is none that blocks.
    """
    blocking: list[str] = []
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        began = time.thread_time()
        try:
            run(self)
        finally:
            took = time.thread_time() - began
            if took > limit_s:
                owner = getattr(self._callback, "__self__", None)
                what = owner if isinstance(owner, asyncio.Task) else self
                blocking.append(f"{took:.2f} s of computing in {what!r}")

    asyncio.Handle._run = timed
    try:
        yield blocking
    finally:
        asyncio.Handle._run = run
