"""Looks that are slow or fail leave their fact out, and the others count."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from potluck.doctor.examination import Known, Looks, examine, look
from potluck.doctor.facts import Adapter, Answer, Disk, MulticastSeen, Peer, Routes
from potluck.wire.messages import Address

CABLE = Adapter(name="eth0", kind="real", is_up=True, networks=("192.168.1.20/24",))
LAPTOP = Peer(name="Laptop", addresses=(Address(host="192.168.1.30", port=1),))
DISK = Disk(folder="/x", holds="weights", free=10**12)
KNOWN = Known(
    folders={"identity": Path("/no/keys")}, peers=(LAPTOP, replace(LAPTOP, is_connected=True))
)


def asked(adapters: Iterable[Adapter]) -> tuple[MulticastSeen, ...]:
    return tuple(
        MulticastSeen(adapter=a.name, address="", heard_itself=True, heard=("x",)) for a in adapters
    )


LOOKS = Looks(
    adapters=lambda: (CABLE,),
    routes=lambda adapters: Routes(default=None, home={}),
    multicast=asked,
    firewall=lambda port: None,
    gateway=lambda: None,
    answer=lambda addresses: "refused",
    clock=lambda: True,
    disks=lambda folders: (DISK,),
    secrets=lambda folder: None,
    now=lambda: 1.8e9,
)


def test_what_was_seen_is_put_together() -> None:
    facts = look(KNOWN, LOOKS)

    assert facts.adapters == (CABLE,)
    assert facts.multicast is not None
    assert facts.multicast[0].adapter == "eth0"  # the interfaces that were found are asked
    assert [peer.answer for peer in facts.peers] == [
        "refused",
        None,
    ]  # a connected one is not asked
    assert (facts.now, facts.disks, facts.is_clock_synchronised) == (1.8e9, (DISK,), True)


def test_a_look_that_fails_leaves_the_others() -> None:
    def broken() -> tuple[Adapter, ...]:
        raise RuntimeError("no such system")

    codes = {f.code for f in examine(KNOWN, replace(LOOKS, adapters=broken)).findings}

    assert {"network_unknown", "multicast_unknown", "disk_ok"} <= codes


def test_a_look_that_takes_too_long_is_not_waited_for() -> None:
    over = threading.Event()

    def slow(addresses: Sequence[Address]) -> Answer | None:
        over.wait(30)
        return "open"

    facts = look(KNOWN, replace(LOOKS, answer=slow), deadline_s=1.5)
    over.set()

    assert facts.peers[0].answer is None
    assert facts.adapters == (CABLE,)
