"""What a node announces by multicast DNS, and how announcements of other nodes are checked.

Instance: the node id in base32, `<52 characters>._potluck._tcp.local.`. TXT, UTF-8:

    v     protocol version          id    node id, hex
    name  of the computer           role  idle, master or worker
    home  id, hex, if it has one    join  1: it may be paired with
    dev   its devices, for people

Anybody on the network can announce anything. Values are therefore bounded and checked, they decide
only what is shown and dialled, and they are never used as a path. Only a node's certificate proves
which node it is.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from potluck.errors import UsageError
from potluck.ids import HomeId, NodeId, is_digest
from potluck.wire.certificates import node_label, node_of_label
from potluck.wire.messages import Address

SERVICE = "_potluck._tcp.local."
MAX_PEERS = 256  # more than a home has; bounds the memory that endless announcements can take
_MAX_VALUE = 200  # bytes; a TXT string holds key and value in 255 (RFC 6763, 6.1)

AdvertRole: TypeAlias = Literal["idle", "master", "worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advert:
    """What this node announces."""

    node_id: NodeId
    name: str
    role: AdvertRole
    port: int
    home: HomeId | None = None
    joinable: bool = False
    devices: str = ""
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A node on the network. Its addresses are in the order in which to dial them."""

    node_id: NodeId
    name: str
    role: AdvertRole
    addresses: tuple[Address, ...]
    home: HomeId | None
    joinable: bool
    devices: str
    protocol: int | None  # None: found by its address; not known yet


def instance_name(node_id: NodeId) -> str:
    """The full name of a node's service instance."""
    return f"{node_label(node_id)}.{SERVICE}"


def node_of(instance: str) -> NodeId | None:
    """The node id in an instance name; None if the instance is not a Potluck node."""
    label, _, service = instance.partition(".")
    try:
        return node_of_label(label) if service == SERVICE else None
    except ValueError:
        return None


def properties(advert: Advert) -> dict[str, str]:
    """The TXT record of an advert."""
    return {
        "v": str(advert.protocol),
        "id": advert.node_id,
        "name": _cut(advert.name),
        "role": advert.role,
        "home": advert.home or "",
        "join": "1" if advert.joinable else "0",
        "dev": _cut(advert.devices),
    }


def parse(
    node_id: NodeId, txt: Mapping[bytes, bytes | None], addresses: tuple[Address, ...]
) -> Found | None:
    """The node that a TXT record describes; None if the record is invalid."""
    text = {
        key: _text(txt.get(key.encode()))
        for key in ("v", "id", "name", "role", "home", "join", "dev")
    }
    version, role, home = text["v"], text["role"], text["home"]
    if text["id"] != node_id or not (version.isascii() and version.isdigit()) or len(version) > 9:
        return None
    if role not in ("idle", "master", "worker") or not addresses:
        return None
    return Found(
        node_id=node_id,
        name=text["name"] or "Computer",
        role=role,
        addresses=addresses,
        home=HomeId(home) if is_digest(home) else None,
        joinable=text["join"] == "1",
        devices=text["dev"],
        protocol=int(version),
    )


def parse_address(text: str, *, default_port: int) -> Address:
    """Read `host[:port]` as a person types it; an IPv6 address with a port is in brackets.

    Raises:
        UsageError: the text is not an address.
    """
    text = text.strip()
    if _is_ipv6(text):
        return Address(host=text, port=default_port)
    match = re.fullmatch(
        r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]/\s]+))(?::(?P<port>\d{1,5}))?", text
    )
    host = match and (match["v6"] or match["host"])
    port = int(match["port"]) if match and match["port"] else default_port
    if (
        not match
        or not host
        or len(host) > 253
        or not 0 < port < 65536
        or (match["v6"] and not _is_ipv6(host))
    ):
        raise UsageError(
            f"{text[:80]!r} is no address. Write a name or an IP address, and a port if it is not"
            f" {default_port}: `192.168.1.20`, `laptop.local:{default_port}`, `[fd00::2]:{default_port}`."
        )
    return Address(host=host, port=port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _cut(text: str) -> str:
    """Remove unprintable characters, and cut to the length that a TXT string holds."""
    printable = "".join(c for c in text if c.isprintable())
    return printable.encode()[:_MAX_VALUE].decode(errors="ignore")


def _text(value: bytes | None) -> str:
    if value is None or len(value) > _MAX_VALUE:
        return ""
    return _cut(value.decode(errors="replace"))
