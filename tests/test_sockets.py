"""Options of sockets are those of the system."""

import errno
import socket
import sys
from collections.abc import Iterator

import pytest

from potluck.sockets import is_withheld, keep_alive, own_port, wake_at

EXCLUSIVE = -5  # SO_EXCLUSIVEADDRUSE


class Options(socket.socket):
    """Notes its options, and asks the system for none."""

    def __init__(self) -> None:
        super().__init__()
        self.set: list[tuple[object, ...]] = []

    def setsockopt(self, *words: object) -> None:
        self.set.append(words)


@pytest.mark.parametrize(
    ("system", "option"),
    [
        ("linux", socket.SO_REUSEADDR),
        ("darwin", socket.SO_REUSEADDR),
        ("win32", EXCLUSIVE),  # there, the other one lets programs take the port over
    ],
)
def test_a_port_is_its_listeners_alone(system: str, option: int) -> None:
    with Options() as sock:
        own_port(sock, system=system)

    assert sock.set == [(socket.SOL_SOCKET, option, 1)]


@pytest.mark.skipif(sys.platform != "win32", reason="Python has the name on Windows alone")
def test_the_option_is_that_of_windows() -> None:
    assert getattr(socket, "SO_EXCLUSIVEADDRUSE") == EXCLUSIVE  # noqa: B009


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        own_port(listening)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def test_a_port_that_is_listened_at_is_not_taken_over(listening: socket.socket) -> None:
    with socket.socket() as other:
        own_port(other)
        with pytest.raises(OSError, match=r"in use|10048|10013"):
            other.bind(listening.getsockname())


@pytest.mark.skipif(sys.platform == "win32", reason="there a port is free when its connections are")
def test_a_port_is_free_as_soon_as_its_listener_has_ended(listening: socket.socket) -> None:
    address = listening.getsockname()
    with socket.create_connection(address):
        accepted, _ = listening.accept()
        accepted.close()  # this end first, so that its connection stays for a minute
    listening.close()

    with socket.socket() as next_one:
        own_port(next_one)
        next_one.bind(address)


def test_the_kernel_watches_silent_connections() -> None:
    with socket.socket() as sock:
        keep_alive(sock)

        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


@pytest.mark.parametrize(("system", "count"), [("linux", 1), ("darwin", 0), ("win32", 0)])
def test_only_linux_is_asked_to_wait_for_many_bytes(system: str, count: int) -> None:
    with Options() as sock:
        wake_at(sock, 1000, system=system)

    assert sock.set == [(socket.SOL_SOCKET, getattr(socket, "SO_RCVLOWAT", 0), 1000)] * count


@pytest.mark.parametrize(
    ("system", "number", "is_so"),
    [
        ("darwin", errno.EHOSTUNREACH, True),
        ("darwin", errno.EADDRNOTAVAIL, False),
        ("linux", errno.EHOSTUNREACH, False),
    ],
)
def test_macos_that_lets_no_packet_out_is_known_by_its_error(
    system: str, number: int, is_so: bool
) -> None:
    assert is_withheld(OSError(number, "refused"), system=system) is is_so
