"""The side of a process with limits: it answers its node's requests until the node is gone.

The process limits its own memory and time where the system can do that, and its node ends it where the
system cannot.
"""

import sys
from collections.abc import Callable

import msgspec

from potluck.cluster.processes.messages import claim_stdout, encode, read_frame
from potluck.cluster.text.messages import Failed
from potluck.errors import PotluckError
from potluck.system.limits import end_after


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
