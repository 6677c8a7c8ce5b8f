"""What to tell a person whose other computers are not found."""

from collections.abc import Sequence
from typing import Final

from potluck.net.listener import DEFAULT_PORT

NOBODY_S: Final = 10.0  # a node that has just started has heard from every computer after 3 s
_MDNS_PORT: Final = 5353


def nobody_found(own: Sequence[str], asked: Sequence[str], *, multicast: bool) -> str:
    """Say what was tried to find other computers, what may be in the way, and what to do.

    Args:
        own: the addresses of this computer at which it looked.
        asked: the known addresses of others that were asked.
        multicast: whether this computer could use multicast at all.
    """
    if not own:
        return "No other computer was found: this computer is in no network. Connect it to one."
    where = f"on {', '.join(own)}"
    tried = f"asked by multicast {where}" if multicast else f"could not use multicast {where}"
    known = f"nobody answers at {', '.join(asked)}" if asked else "no address of another is known"
    return (
        f"No other computer was found. Potluck {tried}, and {known}. Is Potluck running on the other"
        " computer, in the same network? A guest Wi-Fi, an access point that keeps its devices apart,"
        f" a VPN or a firewall (UDP port {_MDNS_PORT}, TCP port {DEFAULT_PORT}) may be in the way. Add the"
        " other computer by its address, `potluck pair ADDRESS`, or by a code: `potluck invite`"
        " prints it here, `potluck worker --join CODE` takes it there. `potluck doctor` looks for what is"
        " in the way."
    )
