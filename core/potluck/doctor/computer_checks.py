"""Findings about this computer: its firewall, versions, clock, disks and keys. Pure."""

import datetime
from collections.abc import Iterator
from typing import Final

from potluck.api.values.doctor import Finding
from potluck.doctor.facts import Disk, Facts, Peer
from potluck.doctor.network_checks import listing
from potluck.doctor.remedies import INSTALL_ENGINE, PRUNE, make_private, open_ports
from potluck.doctor.sentences import say
from potluck.errors import format_bytes

FULL: Final = 1 << 30  # bytes free; the store leaves so much to the system
LOW: Final = 5 << 30  # bytes free; a small model and its packed form
NEARLY_ALL: Final = 0.95  # of what may be stored
CLOCKS_AGREE_S: Final = 120.0
_MADE: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)  # no release is older


# --- firewall


def check_firewall(facts: Facts) -> Iterator[Finding]:
    """Say whether other computers can connect to this one: by trial, else by what the system says."""
    port = str(facts.port)
    command = open_ports(facts.firewall, facts.port)
    helped = facts.running.helped if facts.running is not None else ()
    reached = [p.name for p in facts.peers if p.reaches_us]
    failed = [p.name for p in facts.peers if p.reaches_us is False]
    waiting = [p.name for p in facts.peers if _is_kept_out(p)]
    if failed:
        yield say("firewall_not_reached", command, names=listing(failed), port=port)
    elif reached or helped:
        yield say("firewall_reached", names=listing((*reached, *helped)), port=port)
    elif waiting:
        yield say("firewall_master_silent", command, names=listing(waiting), port=port)
    else:
        yield _what_the_system_says(facts, command, port)


def _is_kept_out(peer: Peer) -> bool:
    """Whether a main computer is there and can be reached, but does not connect to this one."""
    return peer.is_master and peer.answer == "open" and not peer.is_connected


def _what_the_system_says(facts: Facts, command: str, port: str) -> Finding:
    seen = facts.firewall
    if seen is None or seen.is_on is None:
        return say("firewall_unknown", port=port)
    if not seen.is_on:
        return say("firewall_off")
    if seen.lets_in is False:
        return say("firewall_blocks", command, firewall=seen.name, port=port)
    if seen.is_public:
        return say("firewall_public")
    if seen.lets_in:
        return say("firewall_lets_in", firewall=seen.name)
    return say("firewall_on", command, firewall=seen.name, port=port)


# --- versions


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Say which computers have a version that does not understand this one."""
    running = facts.running
    ours = running.protocols if running is not None else ()
    others = [
        p for p in facts.peers if p.mismatch or (p.protocol and ours and p.protocol not in ours)
    ]
    for peer in others:
        is_newer = bool(peer.protocol and ours and peer.protocol > max(ours))
        older = "this computer" if is_newer else peer.name
        yield say("versions_other", names=peer.name, version=facts.version, older=older)
    if running is not None and running.version != facts.version:
        yield say("versions_restart", running=running.version, version=facts.version)
    elif not others:
        yield say("versions_ok", version=facts.version)


# --- clock


def check_clock(facts: Facts) -> Iterator[Finding]:
    """Say whether the clock is wrong. No certificate of a home expires, but those of websites do."""
    if facts.now < _MADE.timestamp():
        date = datetime.datetime.fromtimestamp(facts.now, datetime.UTC).date()
        yield say("clock_past", date=date.isoformat())
        return
    known = [(p, p.clock_ahead_s) for p in facts.peers if p.clock_ahead_s is not None]
    differing = [(p, ahead) for p, ahead in known if abs(ahead) > CLOCKS_AGREE_S]
    for peer, ahead in differing:
        yield say("clock_differs", names=peer.name, difference=_duration(abs(ahead)))
    if known and not differing:
        yield say("clock_ok", names=listing(p.name for p, _ in known))
    elif not known:
        yield say("clock_synchronised" if facts.is_clock_synchronised else "clock_alone")


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


# --- disk and keys


def check_disk(facts: Facts) -> Iterator[Finding]:
    """Say whether there is room for weights, and whether Potluck can write its files."""
    if not facts.disks:
        yield say("disk_unknown")
        return
    troubles = [*_not_written(facts.disks), *_room(facts)]
    weights = next((d for d in facts.disks if d.holds == "weights"), facts.disks[0])
    yield from troubles or [say("disk_ok", free=format_bytes(weights.free))]


def _not_written(disks: tuple[Disk, ...]) -> Iterator[Finding]:
    is_full = any(disk.holds == "weights" and disk.free < FULL for disk in disks)
    folders: dict[str, list[str]] = {}  # by why they cannot be written
    for disk in disks:
        if disk.error and not (is_full and disk.free < FULL):  # that is said once
            folders.setdefault(disk.error, []).append(disk.folder)
    for reason, those in folders.items():
        yield say("disk_not_written", folder=listing(those), reason=reason)


def _room(facts: Facts) -> Iterator[Finding]:
    for disk in facts.disks or ():
        if disk.holds == "weights" and disk.free < LOW:
            code = "disk_full" if disk.free < FULL else "disk_low"
            yield say(code, PRUNE, free=format_bytes(disk.free))
    store = facts.store
    if store is not None and store.limit and store.used >= NEARLY_ALL * store.limit:
        used, limit = format_bytes(store.used), format_bytes(store.limit)
        yield say("disk_quota", PRUNE, used=used, limit=limit)


def check_identity(facts: Facts) -> Iterator[Finding]:
    """Say whether the keys of this computer are private. Without keys there is nothing to say."""
    if facts.secrets is None:
        return
    if facts.secrets.is_private:
        yield say("identity_ok")
    else:
        folder = facts.secrets.folder
        yield say("identity_open", make_private(folder), folder=folder)


# --- engine


def check_engine(facts: Facts) -> Iterator[Finding]:
    """Say whether this computer can compute. Without a node nobody has looked."""
    match facts.running.engine if facts.running is not None else None:
        case "there":
            yield say("engine_ok")
        case "comes":
            yield say("engine_comes")
        case "missing":
            yield say("engine_missing", INSTALL_ENGINE)
        case "none":
            yield say("engine_none")
        case None:
            pass
