"""What a node knows of its own computer and asks of itself when Potluck is updated."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from potluck.system.installation import Package
from potluck.update import trial
from potluck.update.online import newest
from potluck.update.release import this_machine, this_system

REST_S: Final = 10.0  # for so long nothing is answered before the program is replaced
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This computer, as far as updates go.

    Attributes:
        installed: the package that runs; None: it is none.
        folder: for what was fetched and seen.
        is_allowed: whether Potluck may look by itself and follow its home; `allow` changes that.
        is_at_rest: whether nothing is answered, loaded, downloaded or computed for others at this moment.
        restart: ends this node; the version in use then starts.
    """

    installed: Package | None
    folder: Path
    is_allowed: Callable[[], bool]
    allow: Callable[[bool], None]
    is_at_rest: Callable[[], bool]
    restart: Callable[[], None]
    machine: str = this_machine()
    system: str = this_system()
    newest: Callable[[str], bytes] = newest
    try_version: Callable[[Path, str, threading.Event], None] = trial.try_version
    clock: Callable[[], float] = time.time
    rest_s: float = REST_S
    poll_s: float = POLL_S
