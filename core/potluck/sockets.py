"""Options of sockets that systems have in their own ways."""

import errno
import socket
import sys
from collections.abc import Mapping
from typing import Final

_EXCLUSIVE: Final = -5  # winsock.h: SO_EXCLUSIVEADDRUSE; `socket` has the name on Windows alone
_KEEP_ALIVE: Final[Mapping[str, int]] = {
    # After 15 s of silence, lost within another 15 s; systems have some of these.
    "TCP_KEEPIDLE": 15,  # s
    "TCP_KEEPALIVE": 15,  # s; macOS's name for TCP_KEEPIDLE
    "TCP_KEEPINTVL": 5,  # s
    "TCP_KEEPCNT": 3,
}


def own_port(sock: socket.socket, *, system: str = sys.platform) -> None:
    """Have a listener's port for itself, also right after the program that had it before has ended. Call it before `bind`.

    Args:
        sock: which is to listen.
        system: as in `sys.platform`. On Windows, SO_REUSEADDR would let other programs take the port over.
    """
    sock.setsockopt(socket.SOL_SOCKET, _EXCLUSIVE if system == "win32" else socket.SO_REUSEADDR, 1)


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel end a connection whose peer vanished without closing it.

    Control connections have heartbeats, which are faster; other connections may be silent for
    hours.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def wake_at(sock: socket.socket, nbytes: int, *, system: str = sys.platform) -> None:
    """Have the kernel wake who waits for this socket when so many bytes are there; at once where it does not keep to that.

    Args:
        sock: of a connection.
        nbytes: that are sure to come.
        system: as in `sys.platform`. Others than Linux may wait for ever for more than they buffer.
    """
    if system == "linux":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


def is_withheld(error: OSError, *, system: str = sys.platform) -> bool:
    """Whether a packet failed since the user has not allowed this program the local network.

    Args:
        error: of sending it.
        system: as in `sys.platform`. Only macOS asks its user.
    """
    return system == "darwin" and error.errno == errno.EHOSTUNREACH
