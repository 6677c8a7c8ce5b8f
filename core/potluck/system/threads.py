"""How a thread leaves its core to others."""

import os
import sys
import threading
import time
from collections.abc import Callable

_NICE = 5  # a quarter of the time of a core on which another thread computes

give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Let another thread that waits for this core have it for a moment."""


def go_after_others() -> None:
    """Have all other threads go before the calling one on its core, where a thread has a priority of its own.

    On macOS the whole process would have it, with the thread that computes; Windows has no such number.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
