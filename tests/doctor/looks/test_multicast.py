"""A question by multicast on the loopback interface, and who is heard."""

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from potluck.doctor.facts import Adapter
from potluck.doctor.looks import multicast
from potluck.doctor.looks.multicast import look_at_multicast, question
from potluck.sockets import is_withheld

pytestmark = pytest.mark.net

# Loopback is taken for a network here: its own addresses are two computers.
LOOPBACK = Adapter(name="lo", kind="real", is_up=True, networks=("127.0.0.1/8",))
GROUP = "224.0.0.251"
SOON = 0.3


@pytest.fixture
def port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def other(port: int) -> Iterator[None]:
    """Another computer, at 127.0.0.2, that answers each packet of the group."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    sock.bind((GROUP, port))
    member = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.settimeout(0.05)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                _, sender = sock.recvfrom(9000)
            except TimeoutError:
                continue
            if sender[0] != "127.0.0.2":
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answer:
                    answer.bind(("127.0.0.2", 0))
                    interface = socket.inet_aton("127.0.0.1")
                    answer.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
                    answer.sendto(b"here", (GROUP, port))

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()
    sock.close()


def test_the_question_is_in_the_form_of_dns() -> None:
    head = b"\0\x07\0\0\0\x02\0\0\0\0\0\0"  # number, flags, two questions
    pointer, internet = b"\0\x0c", b"\0\x01"
    services = b"\x09_services\x07_dns-sd\x04_udp\x05local\0"
    ours = b"\x08_potluck\x04_tcp\x05local\0"

    assert question(7) == head + services + pointer + internet + ours + pointer + internet


def test_a_computer_hears_itself_where_nothing_is_in_the_way(port: int) -> None:
    (seen,) = look_at_multicast((LOOPBACK,), port=port, listen_s=SOON)

    assert (seen.adapter, seen.address, seen.error) == ("lo", "127.0.0.1", "")
    assert seen.heard_itself
    assert seen.heard == ()


@pytest.mark.usefixtures("other")
def test_others_that_answer_are_heard(port: int) -> None:
    (seen,) = look_at_multicast((LOOPBACK,), port=port, listen_s=SOON)

    assert seen.heard == ("127.0.0.2",)


def test_a_network_on_which_it_cannot_ask_says_why(port: int) -> None:
    gone = Adapter(name="gone", kind="real", is_up=True, networks=("203.0.113.5/24",))

    good, bad = look_at_multicast((LOOPBACK, gone), port=port, listen_s=SOON)

    assert bad.error
    assert good.heard_itself


def test_a_network_that_the_user_withholds_is_told_apart(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    def is_on_macos(error: OSError) -> bool:
        return is_withheld(error, system="darwin")

    monkeypatch.setattr(multicast, "is_withheld", is_on_macos)
    monkeypatch.setattr(multicast.socket.socket, "sendto", refuse)

    (seen,) = look_at_multicast((LOOPBACK,), port=port, listen_s=0.0)

    assert seen.error
    assert seen.is_forbidden


def test_only_real_interfaces_that_are_up_are_asked(port: int) -> None:
    down = Adapter(name="eth9", kind="real", is_up=False, networks=("203.0.113.5/24",))
    vpn = Adapter(name="wg0", kind="tunnel", is_up=True, networks=("203.0.113.5/24",))

    assert look_at_multicast((down, vpn), port=port, listen_s=30.0) == ()  # it waits for nobody
