"""This computer's network interfaces, and the order in which to try another node's addresses.

A home's computers have Docker bridges, VPNs and virtual machines. Their addresses are announced and
dialled last, because the first address that answers is usually the one that is shown and measured.

The owner of a computer may choose its interfaces. The others are not announced, nor asked by multicast, and
nobody is dialled in their networks.
"""

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import ifaddr
import psutil

from potluck.system.networks import names_of_addresses
from potluck.wire.messages import MAX_ADDRESSES, Address

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# Names of virtual interfaces: prefixes (Linux, macOS) and parts of the name (Windows). A tunnel is a VPN's.
_TUNNEL_PREFIXES: Final = (
    "tun", "tap", "utun", "wg", "ppp", "ipsec", "tailscale", "zt", "ham",
)  # fmt: skip
_TUNNEL_PARTS: Final = ("tap-windows", "wintun", "wireguard", "tailscale", "zerotier", "vpn")
_VIRTUAL_PREFIXES: Final = (
    "docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "lxc", "lxd", "cni", "flannel", "podman",
    "awdl", "llw", "bridge1",
)  # fmt: skip
_VIRTUAL_PARTS: Final = (
    "vethernet", "hyper-v", "vmware", "virtualbox", "wsl", "loopback pseudo",
)  # fmt: skip


def is_tunnel(name: str) -> bool:
    """Whether the name of an interface is one that a VPN gives it."""
    name = name.lower()
    return name.startswith(_TUNNEL_PREFIXES) or any(part in name for part in _TUNNEL_PARTS)


def is_virtual(name: str) -> bool:
    """Whether the name of an interface is that of a virtual one: a bridge, a container's, a VPN's."""
    lower = name.lower()
    is_named = lower.startswith(_VIRTUAL_PREFIXES) or any(part in lower for part in _VIRTUAL_PARTS)
    return is_named or is_tunnel(name)


@dataclass(frozen=True, slots=True, order=True)
class Interface:
    """One address of an interface of this computer, with its network."""

    address: str  # without a zone
    prefix: int
    index: int
    is_virtual: bool
    name: str = ""  # as people see it: `eth0`, `Wi-Fi`
    is_used: bool = True

    @property
    def ip(self) -> IpAddress:
        return ipaddress.ip_address(self.address)

    @property
    def is_loopback(self) -> bool:
        return self.ip.is_loopback


Interfaces: TypeAlias = Callable[[], frozenset[Interface]]


def own_interfaces() -> frozenset[Interface]:
    """The interfaces that this computer has now, with the addresses that can be used already."""
    found: set[Interface] = set()
    names = names_of_addresses()  # `ifaddr` knows how makers call them on Windows
    for adapter in ifaddr.get_adapters():
        virtual = is_virtual(adapter.name) or is_virtual(adapter.nice_name)
        for ip in adapter.ips:
            address = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            if isinstance(ip.ip, str) or is_usable_v6(ip.ip):
                name = names.get(address, adapter.nice_name)
                found.add(Interface(address, ip.network_prefix, adapter.index or 0, virtual, name))
    return frozenset(found)


def unplugged() -> Collection[str]:
    """The names of the interfaces that are off, or without a cable: they may keep their addresses."""
    try:
        return {name for name, state in psutil.net_if_stats().items() if not state.isup}
    except OSError:
        return ()


class ChosenInterfaces:
    """This computer's interfaces, of which its owner may choose some. Called as `own_interfaces` is.

    Loopback is always used. If none of the chosen ones is there, all are used.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        interfaces: Interfaces = own_interfaces,
        unplugged: Callable[[], Collection[str]] = unplugged,
    ) -> None:
        self.names = tuple(names)  # that were chosen; none: all are used
        self._interfaces = interfaces
        self._unplugged = unplugged

    def __call__(self) -> frozenset[Interface]:
        own = self._interfaces()
        there = set(self.names) - set(self.missing(own))
        if not there:
            return own
        return frozenset(replace(i, is_used=i.is_loopback or i.name in there) for i in own)

    def missing(self, own: Iterable[Interface]) -> tuple[str, ...]:
        """Of the chosen names, those that no plugged interface with an address has now.

        An address of IPv6 that is for its cable alone does not count: each interface has one, also without a network.
        """
        if not self.names:
            return ()
        there = {i.name for i in own if i.ip.version == 4 or not i.ip.is_link_local}
        there.difference_update(self._unplugged())
        return tuple(name for name in self.names if name not in there)


def is_usable_v6(address: tuple[str, int, int]) -> bool:
    """Whether a socket can be bound to an IPv6 address: host, flow and zone.

    When a cable is plugged in, an IPv6 address is tentative for a second or two: the system asks
    the network whether another computer has it (RFC 4862, 5.4), and refuses to bind to it.
    """
    host, flow, zone = address
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0, flow, zone))
    except OSError:
        return False
    return True


def announced(own: Iterable[Interface]) -> tuple[str, ...]:
    """The addresses that others may dial, best first; loopback only if there is no other."""
    used = (i for i in own if i.is_used)
    ordered = sorted(used, key=lambda i: (i.is_virtual, i.ip.is_link_local, i.ip.version, i))
    outside = [i.address for i in ordered if not i.is_loopback]
    inside = [i.address for i in ordered if i.is_loopback]
    return tuple(dict.fromkeys(outside or inside))[:MAX_ADDRESSES]


def dialling_order(hosts: Iterable[str], own: frozenset[Interface]) -> tuple[str, ...]:
    """Sort another node's addresses in the order to dial them; leave out useless ones.

    If all addresses of a node are also this computer's, the node runs on this computer and loopback
    is the quickest way. Otherwise, loopback and the addresses that this computer has itself are
    left out (every Docker host has 172.17.0.1): they would lead back to this computer.
    """
    ips = {host: ip for host in hosts if (ip := _unicast(host)) is not None}
    ours = {i.ip for i in own}
    if ips and {_bare(ip) for ip in ips.values()} <= ours:
        loopback = [i.address for i in sorted(own) if i.is_loopback and i.ip in _LOOPBACKS]
        return tuple(dict.fromkeys([*loopback, *ips]))[:MAX_ADDRESSES]
    elsewhere = [
        h
        for h, ip in ips.items()
        if not ip.is_loopback and _bare(ip) not in ours and not is_avoided(h, own)
    ]
    return tuple(sorted(elsewhere, key=lambda h: _rank(ips[h], own)))[:MAX_ADDRESSES]


def is_avoided(host: str, own: Iterable[Interface]) -> bool:
    """Whether an address is in a network of this computer that is not used, and in none that is."""
    ip = _unicast(host)
    if ip is None:
        return False
    near = [i for i in own if i.ip.version == ip.version and _is_in(ip, i)]
    return bool(near) and not any(i.is_used for i in near)


def different_networks(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The addresses of a computer that may lead over different networks, at most four of them.

    An interface that has an IPv4 address usually has several IPv6 addresses besides, which lead
    over the same cable. So these count only if there is no IPv4 address. Nothing is faster than
    loopback, by which a node on this computer is reached.
    """
    ips = {address: ip for address in addresses if (ip := _unicast(address.host)) is not None}
    inside = [address for address, ip in ips.items() if ip.is_loopback]
    v4 = [address for address, ip in ips.items() if ip.version == 4]
    return tuple(inside[:1] or v4 or ips)[:_MAX_NETWORKS]


def leaves_from(host: str) -> str | None:
    """The own address from which packets to an address would leave; None: no way leads there.

    To connect a UDP socket sends nothing: it only asks the system for the route.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0]).partition("%")[0]
    return None


def networks(own: frozenset[Interface]) -> list[str | int]:
    """The interfaces in the form that zeroconf expects: IPv4 by address, IPv6 by index.

    IPv4's loopback is included, for nodes on a computer without any network; `::1` is not, since
    multicast on it works on no system.
    """
    used = [i for i in own if i.is_used]
    v4 = sorted(i.address for i in used if i.ip.version == 4 and _is_usable(i))
    v6 = sorted({i.index for i in used if i.ip.version == 6 and i.index and not i.is_loopback})
    return [*v4, *v6]


_MAX_NETWORKS: Final = 4  # a measurement takes a second for each
_LOOPBACKS: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))


def _is_usable(interface: Interface) -> bool:
    return not interface.is_loopback or interface.ip in _LOOPBACKS


def _rank(ip: IpAddress, own: frozenset[Interface]) -> tuple[int, int]:
    """Sort key: same network, then others, virtual, link-local; IPv4 before IPv6 in each."""
    near = [i for i in own if i.ip.version == ip.version and not i.is_loopback and _shares(ip, i)]
    if ip.is_link_local:
        return 3, ip.version
    if any(not i.is_virtual for i in near):
        return 0, ip.version
    return (2 if near else 1), ip.version


def _is_in(ip: IpAddress, interface: Interface) -> bool:
    """Whether the interface leads to an address. Every one has the network of link-local addresses: there, its zone says which."""
    zone = getattr(ip, "scope_id", None)
    if ip.version == 6 and ip.is_link_local and zone is not None:
        return zone in (str(interface.index), interface.name)
    return _shares(ip, interface)


def _shares(ip: IpAddress, interface: Interface) -> bool:
    network = ipaddress.ip_network(f"{interface.address}/{interface.prefix}", strict=False)
    return _bare(ip) in network


def _unicast(host: str) -> IpAddress | None:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return None if ip.is_multicast or ip.is_unspecified else ip


def _bare(ip: IpAddress) -> IpAddress:
    """The address without a zone (link-local IPv6)."""
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is not None:
        return ipaddress.IPv6Address(int(ip))
    return ip
