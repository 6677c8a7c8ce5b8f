"""The side of a process with limits: it answers its node's requests until the node is gone.

The process limits its own memory and time where the system can do that, and its node ends it where the
system cannot.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from potluck.cluster.processes.messages import claim_stdout, encode, read_frame
from potluck.cluster.text.messages import Failed
from potluck.errors import PotluckError

try:
    import resource
except ImportError:  # Windows
    resource = None

_GRACE_S = 5.0  # the node ends the process before this process does


def serve(answer: Callable[[bytes], msgspec.Struct]) -> None:
    """Answer requests until the node is gone; one that fails with `Failed`."""
    pipe = claim_stdout()
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        try:
            answered = answer(frame)
        except PotluckError as error:
            answered = Failed(kind=error.code, message=error.message, data=dict(error.data))
        finally:
            end_after(None)
        pipe.write(encode(answered))
        pipe.flush()


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
