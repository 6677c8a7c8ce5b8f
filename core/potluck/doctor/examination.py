"""Look at this computer and its network, and say what was found.

With a node, what it knows of itself and of the other computers is handed in. Without one, the
addresses that were used before are all that is known of others.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import potluck
from potluck.api.values.doctor import Diagnosis
from potluck.doctor.diagnosis import diagnose
from potluck.doctor.facts import (
    Adapter,
    Answer,
    Disk,
    Facts,
    FirewallSeen,
    Gateway,
    MulticastSeen,
    Peer,
    Routes,
    Running,
    Secrets,
    Store,
)
from potluck.doctor.looks.adapters import look_at_adapters, look_at_gateway, look_at_routes
from potluck.doctor.looks.clocks import look_at_clock
from potluck.doctor.looks.dialling import best_answer
from potluck.doctor.looks.disks import Holds, look_at_disks, look_at_secrets
from potluck.doctor.looks.firewalls import look_at_firewall
from potluck.doctor.looks.multicast import look_at_multicast
from potluck.net.listener import DEFAULT_PORT
from potluck.wire.messages import Address

logger = logging.getLogger(__name__)

LOOK_S: Final = 8.0  # all looks together; they run side by side
_SIDE_BY_SIDE: Final = 24
_MOST_PEERS: Final = 16
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The functions that look. Each may block, and may raise."""

    adapters: Callable[[], tuple[Adapter, ...]] = look_at_adapters
    routes: Callable[[Iterable[Adapter]], Routes] = look_at_routes
    multicast: Callable[[Iterable[Adapter]], tuple[MulticastSeen, ...]] = look_at_multicast
    firewall: Callable[[int], FirewallSeen | None] = look_at_firewall
    gateway: Callable[[], Gateway | None] = look_at_gateway
    answer: Callable[[Sequence[Address]], Answer | None] = best_answer
    clock: Callable[[], bool | None] = look_at_clock
    disks: Callable[[Mapping[Holds, Path]], tuple[Disk, ...]] = look_at_disks
    secrets: Callable[[Path], Secrets | None] = look_at_secrets
    now: Callable[[], float] = time.time


LOOKS: Final = Looks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known before anything is looked at.

    Attributes:
        folders: of Potluck, by what they hold.
        peers: the other computers, whose answer is not known yet.
        running: what the node says of itself; None: no node runs.
        port: at which the node listens.
        store: of the node.
    """

    folders: Mapping[Holds, Path]
    peers: Sequence[Peer] = ()
    running: Running | None = None
    port: int = DEFAULT_PORT
    store: Store | None = None


def examine(known: Known, looks: Looks = LOOKS, *, deadline_s: float = LOOK_S) -> Diagnosis:
    """Look, and return the findings."""
    return diagnose(look(known, looks, deadline_s=deadline_s))


def look(known: Known, looks: Looks = LOOKS, *, deadline_s: float = LOOK_S) -> Facts:
    """Look, and return what was seen. It blocks; what takes longer than the deadline is left out."""
    threads = ThreadPoolExecutor(_SIDE_BY_SIDE, "doctor")
    try:
        return _look(known, looks, threads, time.monotonic() + deadline_s)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _look(known: Known, looks: Looks, threads: ThreadPoolExecutor, deadline: float) -> Facts:
    def begin(look: Callable[..., _T], *given: Any) -> Future[_T]:
        return threads.submit(look, *given)

    def end(look: Future[_T]) -> _T | None:
        wait([look], timeout=max(0.0, deadline - time.monotonic()))
        try:
            return look.result(timeout=0)
        except Exception as error:  # noqa: BLE001 - the boundary of a look: the others go on
            logger.warning("a look failed: %s", error or "it took too long")
            return None

    firewall = begin(looks.firewall, known.port)
    gateway = begin(looks.gateway)
    clock = begin(looks.clock)
    disks = begin(looks.disks, known.folders)
    secrets = begin(looks.secrets, known.folders["identity"])
    asked = [p for p in known.peers if not p.is_connected][:_MOST_PEERS]
    answers = {peer: begin(looks.answer, peer.addresses) for peer in asked}
    adapters = end(begin(looks.adapters))
    routes = begin(looks.routes, adapters or ())
    multicast = begin(looks.multicast, adapters or ())
    return Facts(
        version=potluck.__version__,
        now=looks.now(),
        port=known.port,
        running=known.running,
        adapters=adapters,
        routes=end(routes),
        firewall=end(firewall),
        gateway=end(gateway),
        is_clock_synchronised=end(clock),
        disks=end(disks),
        secrets=end(secrets),
        store=known.store,
        multicast=end(multicast),
        peers=tuple(
            replace(peer, answer=end(answers[peer])) if peer in answers else peer
            for peer in known.peers
        ),
    )
