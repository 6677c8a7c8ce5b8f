"""What the system lets this process have: memory, time and open files. Each does nothing where a system has no such limit."""

import signal
import sys
from contextlib import suppress

try:
    import resource
except ImportError:  # Windows
    resource = None

_GRACE_S = 5.0  # who waits for this process ends it before the system does


def limit_memory(nbytes: int) -> None:
    """Have the system refuse this process more memory, where it can."""
    if resource is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file of that size


def end_after(seconds: float | None) -> None:
    """Have the system end this process when the time is over, where it can; None: never.

    No code of this process is needed for that. It may be deep in a library, and its node gone.
    """
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 0.0 if seconds is None else seconds + _GRACE_S)


def allow_files(count: int) -> None:
    """Have the system give this process so many descriptors, if it gave fewer and allows it.

    macOS gives 256 at first, which the connections of one HTTP listener can use up.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
