"""Whether the system sets its clock by the network."""

import sys

from potluck.system.commands import Ask, ask


def look_at_clock(ask: Ask = ask, *, platform: str = sys.platform) -> bool | None:
    """True: it has done so; None: it has not, or does not say. Nobody outside is asked."""
    if platform != "linux":
        return None
    said = ask("timedatectl", "show", "--property=NTPSynchronized", "--value") or ""
    return True if said.strip() == "yes" else None
