"""A real question by multicast DNS on each network, and who is heard after it.

The question is the one that every responder of mDNS answers: which services are there? (RFC 6763, 9).
Printers, televisions and other computers answer it, and so does Potluck. The system hands a packet that
it sends also to its own listeners: who does not even hear itself has a firewall in the way.
"""

import ipaddress
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from potluck.doctor.facts import Adapter, MulticastSeen
from potluck.net.advert import SERVICE
from potluck.reasons import reason
from potluck.sockets import is_withheld

LISTEN_S: Final = (
    2.5  # responders wait for up to half a second, and answers of sleepers take longer
)
MDNS_PORT: Final = 5353
_AGAIN_S: Final = 1.0  # a packet of multicast may be lost, and Wi-Fi loses more of them
_GROUP4: Final = "224.0.0.251"
_GROUP6: Final = "ff02::fb"
_MOST: Final = 64  # devices that are listed
_PTR, _IN = 12, 1


@dataclass(slots=True)
class _Way:
    """One network on which the question is asked."""

    adapter: Adapter
    ip: ipaddress.IPv4Interface | ipaddress.IPv6Interface
    index: int
    question: bytes
    error: str = ""
    is_forbidden: bool = False
    heard_itself: bool = False
    heard: set[str] = field(default_factory=set[str])

    def seen(self) -> MulticastSeen:
        return MulticastSeen(
            adapter=self.adapter.name,
            address=str(self.ip.ip),
            error=self.error,
            is_forbidden=self.is_forbidden,
            heard_itself=self.heard_itself,
            heard=tuple(sorted(self.heard)),
        )


def question(number: int) -> bytes:
    """A packet of DNS with two questions for pointers: to all services, and to Potluck's."""
    head = struct.pack(">6H", number, 0, 2, 0, 0, 0)
    names = ("_services._dns-sd._udp.local.", SERVICE)
    return head + b"".join(_name(name) + struct.pack(">2H", _PTR, _IN) for name in names)


def _name(name: str) -> bytes:
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def look_at_multicast(
    adapters: Iterable[Adapter], *, port: int = MDNS_PORT, listen_s: float = LISTEN_S
) -> tuple[MulticastSeen, ...]:
    """Ask on each real network by its IPv4 address, or by IPv6 where it has no other."""
    ways = list(_ways(adapters))
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(listener)
            for family in (socket.AF_INET, socket.AF_INET6)
            if (listener := _listen(family, [w for w in ways if _family(w) == family], port))
        ]
        deadline = time.monotonic() + listen_s
        again = time.monotonic() + _AGAIN_S
        for way in ways:
            _send(way, port)
        while listeners and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(listeners, [], [], min(left, 0.2))
            for listener in ready:
                _hear(listener, ways)
            if time.monotonic() > again:
                again = deadline
                for way in ways:
                    _send(way, port)
    return tuple(way.seen() for way in ways)


def _ways(adapters: Iterable[Adapter]) -> Iterator[_Way]:
    for adapter in adapters:
        if adapter.kind != "real" or not adapter.is_up:
            continue
        ips = [ipaddress.ip_interface(text) for text in adapter.networks]
        v4 = [ip for ip in ips if ip.version == 4]
        for ip in v4 or sorted(ips, key=lambda ip: not ip.is_link_local)[:1]:
            number = secrets.randbelow(1 << 16)
            yield _Way(adapter, ip, _index(adapter.name), question(number))


def _index(name: str) -> int:
    with suppress(OSError):
        return socket.if_nametoindex(name)
    return 0


def _family(way: _Way) -> socket.AddressFamily:
    return socket.AF_INET if way.ip.version == 4 else socket.AF_INET6


def _listen(family: socket.AddressFamily, ways: Sequence[_Way], port: int) -> socket.socket | None:
    """A socket that hears the group on all these networks, beside other programs that do."""
    if not ways:
        return None
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("", port))
        sock.setblocking(False)
        for way in ways:
            _join(sock, way)
    except OSError as error:
        sock.close()
        for way in ways:
            way.error = reason(error)
        return None
    return sock


def _join(sock: socket.socket, way: _Way) -> None:
    try:
        if way.ip.version == 4:
            member = socket.inet_aton(_GROUP4) + way.ip.ip.packed
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        else:
            group = socket.inet_pton(socket.AF_INET6, _GROUP6)
            member = group + struct.pack("@I", way.index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    except OSError as error:
        way.error = reason(error)


def _send(way: _Way, port: int) -> None:
    """Send the question on the network of its own address, a single hop far."""
    try:
        with socket.socket(_family(way), socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # From the port of mDNS: answers then go to all, and so to the listener.
            if way.ip.version == 4:
                sock.bind((str(way.ip.ip), port))
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, way.ip.ip.packed)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                sock.sendto(way.question, (_GROUP4, port))
            else:
                scope = way.index if way.ip.is_link_local else 0
                sock.bind((str(way.ip.ip), port, 0, scope))
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, way.index)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
                sock.sendto(way.question, (_GROUP6, port, 0, way.index))
    except PermissionError:
        way.error = "a firewall of this computer refuses it"
    except OSError as error:
        way.error = reason(error)
        way.is_forbidden = is_withheld(error)


def _hear(listener: socket.socket, ways: Sequence[_Way]) -> None:
    """Note from whom a packet is. All sockets of the group hear the packets of every network."""
    try:
        data, sender = listener.recvfrom(9000)
    except OSError:  # an answer of ICMP to an earlier packet
        return
    ip = ipaddress.ip_address(str(sender[0]).partition("%")[0])
    own = {way.ip.ip for way in ways}
    for way in ways:
        if ip == way.ip.ip and data == way.question:
            way.heard_itself = True
        elif ip not in own and ip in way.ip.network and len(way.heard) < _MOST:
            way.heard.add(str(ip))
