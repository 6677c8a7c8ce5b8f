"""How long the commands wait. Tests use shorter times."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long the commands wait, in seconds."""

    poll_s: float = 0.2
    """Between two questions to the node on this computer; to a person this looks immediate."""
    discovery_s: float = 4.0
    """A node that has just started has heard from every computer after 3 s."""
    devices_s: float = 20.0
    """torch is slow to start and to list the devices."""
    pairing_s: float = 180.0
    """A person has to walk to the other computer."""
    restarts: int = 6
    """So often in a row a lost node is started again."""
    restart_s: float = 1.0
    """Before the second try; twice as long before each further one."""
    leave_s: float = 40.0
    """A computer that leaves gives its master 30 s, and then frees what it lent."""
    steady_s: float = 60.0
    """A node that was used for so long is no failed try."""
