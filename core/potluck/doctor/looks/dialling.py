"""Whether anything answers at an address of TCP."""

import errno
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from potluck.doctor.facts import Answer
from potluck.wire.messages import Address

DIAL_S: Final = 2.5
_BEST: Final[tuple[Answer, ...]] = ("open", "refused", "silent", "unreachable")
_SIDE_BY_SIDE: Final = 8
# On Windows, `connect` of a socket with a deadline fails with this one for a silent computer.
_SILENT: Final = (errno.ETIMEDOUT, 10060)


def dial(host: str, port: int, *, timeout_s: float = DIAL_S) -> Answer:
    """Connect for a moment and say what came back."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "silent" if error.errno in _SILENT else "unreachable"
    return "open"


def best_answer(addresses: Sequence[Address], *, timeout_s: float = DIAL_S) -> Answer | None:
    """The best answer of a computer's addresses, asked side by side; None: it has none."""
    if not addresses:
        return None

    def ask(address: Address) -> Answer:
        return dial(address.host, address.port, timeout_s=timeout_s)

    with ThreadPoolExecutor(_SIDE_BY_SIDE, "doctor dials") as threads:
        return min(threads.map(ask, addresses), key=_BEST.index)
