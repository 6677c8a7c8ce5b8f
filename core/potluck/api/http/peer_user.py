"""Whether a connection of this computer comes from the user that runs Potluck.

Linux tells the owner of one socket (sock_diag(7)) in 50 µs. Where a sandbox does not let us ask, it
lists the sockets of all users with their owners in `/proc/net/tcp` (proc_net(5)), which takes some
milliseconds. Windows and macOS tell an ordinary program nothing of the sockets of others.
"""

import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import TypeAlias

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ROOT = 0  # may read everything anyway, and forwards ports for containers

_SOCK_DIAG = 4  # the netlink protocol; the names are those of the kernel's headers
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _TCP_ESTABLISHED = 20, 1, 1
_SOCKET = struct.Struct("!HH16s16s")  # ports and addresses of both ends
_REQUEST = struct.Struct("=IHHIIBBBxI36sIII")  # nlmsghdr and inet_diag_req_v2
_ANSWER = struct.Struct("=IHHIIBBBB36s12x12xII")  # nlmsghdr and inet_diag_msg
_ANY = 0xFFFFFFFF  # all states; no cookie

_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9  # columns of the tables


Address: TypeAlias = tuple[str, int]


def is_own_user(client: Address, server: Address, tables: tuple[Path, ...] = TABLES) -> bool:
    """Return whether a program of this user, or of root, holds the other end of a connection.

    Args:
        client: address and port of the other end.
        server: address and port of this end.
        tables: the files that list all sockets. Where there are none, every user counts as this one.
    """
    getuid = getattr(os, "getuid", None)
    if getuid is not None and (user := owner(client, server)) is not None:
        return user in (getuid(), _ROOT)
    try:
        tables = tuple(filter(Path.exists, tables))
        lines = [line for table in tables for line in table.read_text().splitlines()[1:]]
    except OSError:  # a sandbox hides them
        return True
    if getuid is None or not tables:
        return True
    local, remote = _spellings(*client), _spellings(*server)
    for columns in map(str.split, lines):
        # A socket without an inode was closed by its program, whoever that was.
        ends_fit = columns[_LOCAL] in local and columns[_REMOTE] in remote
        if ends_fit and columns[_INODE] != "0":
            return int(columns[_USER]) in (getuid(), _ROOT)
    return False


def owner(client: Address, server: Address) -> int | None:
    """Return the id of the user that holds the connection's other end; None: the system does not say."""
    ends = [_plain(host) for host, _ in (client, server)]
    asked = _SOCKET.pack(client[1], server[1], *(end.packed for end in ends))
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    request = _REQUEST.pack(
        *(_REQUEST.size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0),
        *(family, socket.IPPROTO_TCP, 0, _ANY, asked, 0, _ANY, _ANY),
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(request)
            answer = kernel.recv(4096)
    except (AttributeError, OSError):  # another system, or a sandbox
        return None
    if len(answer) < _ANSWER.size:
        return None  # an error, such as that there is no such socket
    _, kind, _, _, _, _, state, _, _, found, user, inode = _ANSWER.unpack_from(answer)
    is_it = kind == _SOCK_DIAG_BY_FAMILY and state == _TCP_ESTABLISHED and inode
    return user if is_it and found == asked else None


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; one of IPv4 also if it is written as one of IPv6."""
    address = ipaddress.ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address


def _spellings(host: str, port: int) -> set[str]:
    """Return how the tables write an address: in words of 32 bits, in the order of this processor."""
    address = ipaddress.ip_address(host)
    forms = [address.packed]
    if address.version == 4:
        forms.append(ipaddress.ip_address(f"::ffff:{host}").packed)
    elif address.ipv4_mapped is not None:
        forms.append(address.ipv4_mapped.packed)
    return {_words(form) + f":{port:04X}" for form in forms}


def _words(packed: bytes) -> str:
    count = len(packed) // 4
    return "".join(f"{word:08X}" for word in struct.unpack(f"={count}I", packed))
