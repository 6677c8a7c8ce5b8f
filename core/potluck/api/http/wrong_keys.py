"""Who guesses keys, waits: how many wrong ones each address sent, and until when it is refused."""

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

GUESSES = 10  # before an address has to wait, and again after each wait
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0  # each wait is twice as long as the one before
FORGET_S = 86400.0  # an address without wrong keys for so long begins anew
_MOST_ADDRESSES = 1000


@dataclass(slots=True)
class _Guesser:
    wrong: int = 0
    last: float = 0.0
    waits_until: float = 0.0


class WrongKeys:
    """The wrong keys of each address. An IPv6 network of 64 bits is one address.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guessers: dict[str, _Guesser] = {}  # who sent a wrong key last, comes last

    def wait_s(self, host: str) -> float:
        """Return how many seconds the address has to wait; 0: it may send a key."""
        guesser = self._guessers.get(_source(host))
        return 0.0 if guesser is None else max(0.0, guesser.waits_until - self._clock())

    def note(self, host: str) -> None:
        """Note a wrong key of an address."""
        now, source = self._clock(), _source(host)
        guesser = self._guessers.pop(source, None)
        if guesser is None or now - guesser.last > FORGET_S:
            guesser = _Guesser()
        self._guessers[source] = guesser
        guesser.wrong, guesser.last = guesser.wrong + 1, now
        waits, rest = divmod(guesser.wrong, GUESSES)
        if rest == 0:
            guesser.waits_until = now + min(
                LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(waits - 1, 16)
            )
        if len(self._guessers) > _MOST_ADDRESSES:
            del self._guessers[next(iter(self._guessers))]


def _source(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))
