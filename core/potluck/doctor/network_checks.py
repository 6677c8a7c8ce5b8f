"""Findings about networks, multicast, VPNs and the way to other computers. Pure."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

from potluck.api.values.doctor import Finding
from potluck.doctor.facts import Adapter, Facts, Peer
from potluck.doctor.remedies import LIMIT, open_ports
from potluck.doctor.sentences import say

_IpInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def listing(names: Iterable[str]) -> str:
    """Names as text: `A`, `A and B`, `A, B and C`; each once."""
    each = list(dict.fromkeys(names))
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else "".join(each)


def _addresses(adapter: Adapter) -> list[_IpInterface]:
    return [ipaddress.ip_interface(network) for network in adapter.networks]


def _in_use(facts: Facts, kind: str) -> list[Adapter]:
    """The interfaces of a kind that are up and have an address."""
    return [a for a in facts.adapters or () if a.kind == kind and a.is_up and a.networks]


# --- networks


def check_network(facts: Facts) -> Iterator[Finding]:
    """Say in which networks this computer is."""
    if facts.adapters is None:
        yield say("network_unknown")
        return
    real = _in_use(facts, "real")
    if not real:
        virtual = [a.name for kind in ("virtual", "tunnel") for a in _in_use(facts, kind)]
        code = "network_only_virtual" if virtual else "network_none"
        yield say(code, adapters=listing(virtual))
        return
    troubles = [*_odd_addresses(real), *_metered(real)]
    yield from troubles or [_networks(facts, real)]


def _odd_addresses(real: Sequence[Adapter]) -> Iterator[Finding]:
    """Say so of addresses that no home network gives, if the computer has no others."""
    has_home = any(
        ip.version == 4 and not ip.is_global and not ip.is_link_local
        for adapter in real
        for ip in _addresses(adapter)
    )
    for adapter in real:
        v4 = [ip for ip in _addresses(adapter) if ip.version == 4]
        if has_home or not v4:
            continue
        code = "network_self_assigned" if v4[0].is_link_local else "network_public"
        yield say(code, adapters=adapter.name, address=str(v4[0].ip))


def _metered(real: Sequence[Adapter]) -> Iterator[Finding]:
    if metered := [a.name for a in real if a.is_metered]:
        yield say("network_metered", LIMIT, adapters=listing(metered))


def _networks(facts: Facts, real: Sequence[Adapter]) -> Finding:
    adapters = listing(a.name for a in real)
    v4 = [str(ip.network) for a in real for ip in _addresses(a) if ip.version == 4]
    if not v4:
        return say("network_ipv6", adapters=adapters)
    is_alone = not any(peer.is_connected for peer in facts.peers)
    code = "network_several" if len(set(v4)) > 1 and is_alone else "network_ok"
    return say(code, networks=listing(v4), adapters=adapters)


def check_choice(facts: Facts) -> Iterator[Finding]:
    """Say what the owner of this computer has chosen of its networks, and what came of it."""
    network = facts.running.network if facts.running is not None else None
    if network is None:
        return
    if network.missing:
        yield say("network_chosen_gone", adapters=listing(network.missing))
    if there := [name for name in network.chosen if name not in network.missing]:
        yield say("network_chosen", adapters=listing(there))
    if network.port_problem is not None:
        yield say("network_port_taken", port=str(network.fixed_port or 0), used=str(network.port))


# --- multicast


def check_multicast(facts: Facts) -> Iterator[Finding]:
    """Say where questions by multicast go out, come back, and are answered."""
    if not facts.multicast:
        yield say("multicast_unknown")
        return
    if any(seen.is_forbidden for seen in facts.multicast):
        yield say("multicast_forbidden")
        return
    for seen in facts.multicast:
        if seen.error:
            yield say("multicast_not_sent", adapters=seen.adapter, reason=seen.error)
    deaf = [m for m in facts.multicast if not m.error and not m.heard_itself and not m.heard]
    if deaf:
        yield say(
            "multicast_not_heard",
            open_ports(facts.firewall, facts.port),
            adapters=listing(m.adapter for m in deaf),
            port=str(facts.port),
        )
    if heard := [m.adapter for m in facts.multicast if m.heard]:
        yield say("multicast_ok", adapters=listing(heard))
    elif alone := [m.adapter for m in facts.multicast if m.heard_itself]:
        yield _unanswered(facts, listing(alone))


def _unanswered(facts: Facts, adapters: str) -> Finding:
    """What it means that only this computer hears its own question."""
    others = [p.name for p in facts.peers if p.is_connected or p.answer == "open"]
    if others:
        return say("multicast_dropped", adapters=adapters, names=listing(others))
    return say("multicast_nobody", adapters=adapters)


# --- VPN


def check_vpn(facts: Facts) -> Iterator[Finding]:
    """Say whether a VPN takes what is meant for the computers of the home."""
    if facts.adapters is None:
        yield say("vpn_unknown")
        return
    tunnels = [a for a in _in_use(facts, "tunnel") if not all(map(_is_idle, _addresses(a)))]
    if not tunnels:
        yield say("vpn_none")
        return
    adapters = listing(a.name for a in tunnels)
    if facts.routes is None:
        yield say("vpn_unknown")
        return
    theirs = {str(ip.ip) for a in tunnels for ip in _addresses(a)}
    home = [ip for a in _in_use(facts, "real") for ip in _addresses(a) if ip.version == 4]
    taken = [str(ip.network) for ip in home if facts.routes.home.get(str(ip.ip)) in theirs]
    if taken:
        yield say("vpn_home", adapters=adapters, networks=listing(taken))
    elif facts.routes.default in theirs:
        yield say("vpn_default", adapters=adapters)
    else:
        yield say("vpn_aside", adapters=adapters)


def _is_idle(ip: _IpInterface) -> bool:
    """Whether a tunnel that is not in use has such an address (macOS always has some)."""
    return ip.is_link_local


# --- the way to other computers


def check_computers(facts: Facts) -> Iterator[Finding]:
    """Say which of the known computers can be reached, and what may keep the others apart."""
    connected = [p for p in facts.peers if p.is_connected]
    others = [p for p in facts.peers if not p.is_connected]
    if facts.running is None:
        yield say("computers_not_asked")
    elif not facts.peers:
        yield say("computers_none")
    if connected:
        yield say("computers_connected", names=listing(p.name for p in connected))
    if there := [p.name for p in others if p.answer == "open"]:
        yield say("computers_answer", names=listing(there))
    if idle := [p.name for p in others if p.answer == "refused"]:
        yield say("computers_refuse", names=listing(idle))
    silent = [p for p in others if p.answer in ("silent", "unreachable")]
    yield from (_blocked(p) for p in silent if p.is_found and p.addresses)
    gone = [p for p in silent if not p.is_found]
    nobody = not connected and not there and not idle
    if gone and nobody and facts.gateway is not None and facts.gateway.answers:
        yield say("computers_isolated", names=listing(p.name for p in gone))
    else:
        yield from (say("computers_silent", names=p.name, address=_where(p)) for p in gone)


def _blocked(peer: Peer) -> Finding:
    port = str(peer.addresses[0].port)
    return say("computers_blocked", names=peer.name, address=_where(peer), port=port)


def _where(peer: Peer) -> str:
    """Its addresses as people know them: those of one cable alone only if there are no others."""
    hosts = [address.host for address in peer.addresses]
    return listing([h for h in hosts if not h.lower().startswith("fe80:")] or hosts)
