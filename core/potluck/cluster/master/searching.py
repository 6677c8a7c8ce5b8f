"""A search beside the event loop, with a limit of time."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def search_in_thread(search: Callable[..., _T], *, limit_s: float) -> _T:
    """Search in a thread, so that the event loop goes on and no peer takes this node for dead.

    A thread is enough: the search is mostly numpy, which releases the interpreter lock. `search`
    gets a function `stop`, which is true after the time limit and when the caller was cancelled.
    """
    ends_at = time.monotonic() + limit_s
    is_left = threading.Event()
    try:
        return await asyncio.to_thread(
            search, stop=lambda: is_left.is_set() or time.monotonic() >= ends_at
        )
    finally:
        is_left.set()
