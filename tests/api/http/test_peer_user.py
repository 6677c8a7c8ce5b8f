"""Whose program is at the other end of a loopback connection."""

import os
import socket
import sys
from pathlib import Path

import pytest

from potluck.api.http.peer_user import is_own_user, owner

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="users have no numbers there")

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  inode"
CLIENT, SERVER = ("127.0.0.1", 0x9E8B), ("127.0.0.1", 8000)


def line(user: int, *, remote: str = "0100007F:1F40", inode: int = 7) -> str:
    return (
        f" 0: 0100007F:9E8B {remote} 01 00000000:00000000 00:00000000 00000000 {user} 0 {inode} 1"
    )


@pytest.mark.parametrize(
    ("lines", "own"),
    [
        ([line(os.getuid())], True),
        ([line(0)], True),
        ([line(os.getuid() + 1)], False),
        ([line(0, inode=0)], False),  # its program has closed it: nobody knows whose it was
        ([line(0, remote="0100007F:1F41"), line(os.getuid() + 1)], False),  # of another connection
        ([], False),
    ],
)
@pytest.mark.skipif(sys.byteorder == "big", reason="the table is in the processor's order")
def test_the_owner_of_the_very_connection_counts(
    tmp_path: Path, lines: list[str], own: bool
) -> None:
    table = tmp_path / "tcp"
    table.write_text("\n".join([HEAD, *lines]))

    assert is_own_user(CLIENT, SERVER, (table,)) is own


def test_where_the_system_does_not_tell_every_user_counts_as_this_one(tmp_path: Path) -> None:
    assert is_own_user(CLIENT, SERVER, (tmp_path / "none",))


@pytest.mark.net
@pytest.mark.parametrize(
    ("family", "bound", "dialled"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_a_connection_of_this_user_is_found(
    family: socket.AddressFamily, bound: str, dialled: str
) -> None:
    with socket.socket(family) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((bound, 0))
        listener.listen()
        with socket.create_connection((dialled, listener.getsockname()[1])):
            taken, client = listener.accept()
            with taken:
                assert is_own_user(client[:2], taken.getsockname()[:2])
                if sys.platform == "linux":
                    assert owner(client[:2], taken.getsockname()[:2]) == os.getuid()


def test_of_a_connection_that_is_not_there_the_system_says_nothing() -> None:
    assert owner(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
