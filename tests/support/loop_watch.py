"""Finds what blocks an event loop: a callback that computes for long, while nothing else runs."""

import asyncio
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

LIMIT_S = 0.5  # heartbeats are due every 0.9 s, and nothing in a node should come near that


@contextmanager
def watching(limit_s: float = LIMIT_S) -> Generator[list[str]]:
    """Collect the callbacks of every event loop that take longer.

    Counted is the CPU time of the loop's own thread: on a busy machine everything takes long, so a
    callback that only waited for the processor is not counted as blocking. Garbage collection is not
    counted: the process of the tests holds many times the objects of a node, and takes that longer.
    """
    blocking: list[str] = []
    run = asyncio.Handle._run
    collecting = defaultdict[int, float](float)  # seconds of each thread

    def collected(phase: str, _info: dict[str, int]) -> None:
        now = time.thread_time()
        collecting[threading.get_ident()] += -now if phase == "start" else now

    def seconds() -> float:
        return time.thread_time() - collecting[threading.get_ident()]

    def timed(self: asyncio.Handle) -> None:
        began = seconds()
        try:
            run(self)
        finally:
            took = seconds() - began
            if took > limit_s:
                owner = getattr(self._callback, "__self__", None)
                what = owner if isinstance(owner, asyncio.Task) else self
                blocking.append(f"{took:.2f} s of computing in {what!r}")

    asyncio.Handle._run = timed
    gc.callbacks.append(collected)
    try:
        yield blocking
    finally:
        gc.callbacks.remove(collected)
        asyncio.Handle._run = run
