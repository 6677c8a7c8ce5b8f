"""Whether a connection of this computer comes from the user that runs Potluck.

Linux lists the sockets of all users with their owners in `/proc/net/tcp` (proc_net(5)). Windows and
macOS tell an ordinary program nothing of the sockets of others.
"""

import ipaddress
import os
import struct
from pathlib import Path
from typing import TypeAlias

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ROOT = 0  # may read everything anyway, and forwards ports for containers
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
