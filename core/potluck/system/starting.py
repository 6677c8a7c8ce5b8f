"""How processes are started that nobody is to see."""

import sys
from typing import Final

# winbase.h; `subprocess` has the names on Windows alone.
NO_WINDOW: Final = 0x08000000
NEW_PROCESS_GROUP: Final = 0x00000200


def hidden(*, alone: bool = False, system: str = sys.platform) -> int:
    """Return the creation flags of a process without a window of its own: none, except on Windows.

    Args:
        alone: Ctrl-C in the terminal is not to reach it. Other systems have sessions for that.
        system: as in `sys.platform`.
    """
    if system != "win32":
        return 0
    # Not DETACHED_PROCESS: each process that this one starts would open a console of its own.
    return NO_WINDOW | NEW_PROCESS_GROUP if alone else NO_WINDOW
