"""The network interfaces, the routes and the router, as the system tells of them."""

import ipaddress
import re
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from potluck.doctor.facts import Adapter, AdapterKind, Gateway, Routes
from potluck.doctor.looks.dialling import dial
from potluck.net.interfaces import is_tunnel, is_virtual, leaves_from
from potluck.system.commands import Ask, ask

# An address for documentation (RFC 5737): it lies outside every home. Nothing is sent to it.
_OUTSIDE: Final = "198.51.100.1"
_ROUTER_PORTS: Final = (53, 80, 443)
_ROUTER_S: Final = 1.0
_METERED: Final = re.compile(r"^GENERAL\.(DEVICE|METERED):(.*)$", re.MULTILINE)


def look_at_adapters(ask: Ask = ask) -> tuple[Adapter, ...]:
    """All interfaces, also those that are down."""
    states, metered = psutil.net_if_stats(), metered_names(ask)
    found: list[Adapter] = []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        flags = state.flags if state is not None else ""
        found.append(
            Adapter(
                name=name,
                kind=kind_of(name, flags),
                is_up=state is not None and state.isup,
                networks=tuple(filter(None, map(_network, addresses))),
                is_metered=name in metered,
            )
        )
    return tuple(found)


def kind_of(name: str, flags: str) -> AdapterKind:
    """What an interface is, by its name and the flags that the system gives it."""
    if "loopback" in flags or name in ("lo", "lo0") or name.startswith("Loopback"):
        return "loopback"
    if is_tunnel(name) or "pointopoint" in flags:
        return "tunnel"
    return "virtual" if is_virtual(name) else "real"


def _network(entry: Any) -> str | None:
    """The address with its prefix; None: it is no IP address. On Windows, IPv6 has no mask."""
    if entry.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host = entry.address.partition("%")[0]
    if entry.netmask is None:
        return f"{host}/64" if entry.family == socket.AF_INET6 else f"{host}/32"
    bits = int(ipaddress.ip_address(entry.netmask)).bit_count()
    return f"{host}/{bits}"


def metered_names(ask: Ask) -> frozenset[str]:
    """The interfaces that NetworkManager holds for metered; none where it does not run."""
    said = ask("nmcli", "-t", "-f", "GENERAL.DEVICE,GENERAL.METERED", "device", "show") or ""
    names: set[str] = set()
    device = ""
    for key, value in _METERED.findall(said):
        if key == "DEVICE":
            device = value
        elif value.startswith("yes"):
            names.add(device)
    return frozenset(names)


def look_at_routes(adapters: Iterable[Adapter]) -> Routes:
    """From which address packets to the home's networks and to anywhere else leave."""
    home: dict[str, str | None] = {}
    for adapter in adapters:
        for text in adapter.networks if adapter.kind == "real" and adapter.is_up else ():
            ip = ipaddress.ip_interface(text)
            if ip.version == 4 and ip.network.num_addresses > 2:
                home[str(ip.ip)] = leaves_from(str(_neighbour(ip)))
    return Routes(default=leaves_from(_OUTSIDE), home=home)


def _neighbour(
    ip: ipaddress.IPv4Interface | ipaddress.IPv6Interface,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Another address of the same network. Whether anybody has it does not matter."""
    first, second = ip.network[1], ip.network[2]
    return second if ip.ip == first else first


# --- the router


def look_at_gateway(
    ask: Ask = ask, ports: Sequence[int] = _ROUTER_PORTS, *, platform: str = sys.platform
) -> Gateway | None:
    """The router and whether it answers; None: there is none, or the system does not say."""
    address = gateway_address(ask, platform=platform)
    if address is None:
        return None
    for port in ports:
        if dial(address, port, timeout_s=_ROUTER_S) in ("open", "refused"):
            return Gateway(address=address, answers=True)
    once = ("-n", "1", "-w", "1000") if platform == "win32" else ("-c", "1")
    return Gateway(address=address, answers=ask("ping", *once, address) is not None)


def gateway_address(
    ask: Ask, table: Path = Path("/proc/net/route"), *, platform: str = sys.platform
) -> str | None:
    """The address of the router of IPv4."""
    with suppress(OSError):
        return linux_gateway(table.read_text())
    if platform == "win32":
        said = ask("route", "print", "-4", "0.0.0.0") or ""  # noqa: S104 - the default route
        match = re.search(r"^\s*0\.0\.0\.0\s+0\.0\.0\.0\s+(\d+\.\d+\.\d+\.\d+)", said, re.MULTILINE)
    else:
        said = ask("route", "-n", "get", "default") or ""
        match = re.search(r"gateway:\s*(\d+\.\d+\.\d+\.\d+)", said)
    return match[1] if match else None


def linux_gateway(table: str) -> str | None:
    """The router in `/proc/net/route`, whose addresses are in hex, of the processor's byte order."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000" and fields[2] != "00000000":
            return socket.inet_ntoa(struct.pack("=I", int(fields[2], 16)))
    return None
