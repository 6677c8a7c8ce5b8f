"""Links that are served by whichever thread has the turn."""

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from potluck.net.reactor import Delivery, Reactor, ReactorThread
from potluck.wire.activation_messages import CloseSession
from potluck.wire.messages import Message

pytestmark = pytest.mark.net

HELLO = CloseSession(epoch=1, session="hello")


class FakeLink:
    """A readable end of a socket pair; each byte that arrives is a message."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.is_closed = False
        self.has_backlog = False
        self.waiting: list[Delivery] = []  # as after a handshake: not in the socket any more
        self.written = 0

    def fileno(self) -> int:
        return self.near.fileno()

    def read(self) -> list[Delivery]:
        try:
            count = len(self.near.recv(100))
        except BlockingIOError:
            count = 0
        taken, self.waiting = self.waiting, []
        return [*taken, *[(HELLO, memoryview(b"x" * 100))] * count]

    def send_backlog(self) -> None:
        self.written += 1
        self.has_backlog = False

    def close(self) -> None:
        self.is_closed = True

    def release(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


def test_what_arrives_is_given_to_its_links_receiver(reactor: Reactor) -> None:
    links, got = (FakeLink(), FakeLink()), list[int]()
    for number, link in enumerate(links):
        reactor.add(link, lambda message, payload, number=number: got.append(number))
    reactor.turn()  # for the sake of the new links
    links[1].far.send(b"12")
    reactor.turn()
    links[0].far.send(b"3")
    while len(got) != 3:
        reactor.turn()
    assert got == [1, 1, 0]


def test_what_came_with_the_handshake_is_not_waited_for(reactor: Reactor) -> None:
    link, got = FakeLink(), list[Message]()
    link.waiting.append((HELLO, memoryview(b"")))
    reactor.add(link, lambda message, _: got.append(message))
    reactor.turn()
    reactor.turn()
    assert got == [HELLO]


def test_a_backlog_is_written_as_soon_as_the_socket_can_be(reactor: Reactor) -> None:
    link = FakeLink()
    reactor.add(link, lambda message, payload: None)
    reactor.turn()
    link.has_backlog = True
    reactor.wake()
    while not link.written:
        reactor.turn()
    assert link.written == 1


def test_a_link_that_ended_is_let_go(reactor: Reactor) -> None:
    link = FakeLink()
    reactor.add(link, lambda message, payload: None)
    reactor.turn()
    link.close()
    reactor.wake()
    while link.near.fileno() >= 0:
        reactor.turn()

    again = FakeLink()  # likely with the same descriptors
    got: list[Message] = []
    reactor.add(again, lambda message, _: got.append(message))
    again.far.send(b"1")
    while not got:
        reactor.turn()


def test_links_are_not_read_while_their_receivers_can_take_no_more() -> None:
    got: list[Message] = []
    reactor = Reactor(is_full=lambda: len(got) == 2)
    link = FakeLink()
    reactor.add(link, lambda message, _: got.append(message))
    reactor.turn()
    link.far.send(b"12")
    while not got:
        reactor.turn()
    link.far.send(b"3")
    for _ in range(3):
        reactor.poll()
    assert len(got) == 2
    got.clear()
    while not got:
        reactor.turn()
    reactor.close()


def test_a_poll_does_not_wait(reactor: Reactor) -> None:
    link, got = FakeLink(), list[Message]()
    reactor.add(link, lambda message, _: got.append(message))
    reactor.poll()
    assert not got
    link.far.send(b"1")
    while not got:
        reactor.poll()


def test_a_message_that_cannot_be_handled_is_in_the_log_and_the_next_one_is_handled(
    reactor: Reactor, caplog: pytest.LogCaptureFixture
) -> None:
    link, got = FakeLink(), list[Message]()

    def receive(message: Message, payload: memoryview) -> None:
        got.append(message)
        if len(got) == 1:
            raise ValueError("a bug")

    reactor.add(link, receive)
    link.waiting.extend([(HELLO, memoryview(b""))] * 2)
    reactor.turn()
    assert len(got) == 2
    assert "a bug" in caplog.text


def test_the_thread_of_a_reactor_handles_messages_until_it_is_stopped() -> None:
    thread, link, done = ReactorThread("test"), FakeLink(), threading.Event()
    thread.reactor.add(link, lambda message, payload: done.set())
    thread.start()
    link.far.send(b"1")
    assert done.wait(10)
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_link_that_ends_while_it_is_looked_at_is_let_go_at_the_next_turn(
    reactor: Reactor,
) -> None:
    class Ending(FakeLink):
        looks = 0

        @property
        def is_closed(self) -> bool:  # type: ignore[override]
            self.looks += 1
            return self.looks > 1

        @is_closed.setter
        def is_closed(self, value: bool) -> None: ...

    reactor._selector.close()
    reactor._selector = (
        selectors.SelectSelector()
    )  # which does not bear a closed socket, as on Windows
    reactor._selector.register(reactor._woken, selectors.EVENT_READ)
    link = Ending()
    reactor.add(link, lambda message, payload: None)
    reactor.turn()
    assert link.near.fileno() >= 0
    reactor.wake()
    while link.near.fileno() >= 0:
        reactor.turn()
    reactor.wake()
    reactor.turn()


@pytest.mark.parametrize("awake_s", [1e-9, 60.0])
def test_who_waits_awake_takes_what_comes_and_sleeps_in_the_end(
    reactor: Reactor, awake_s: float
) -> None:
    link, got = FakeLink(), list[Message]()
    reactor.add(link, lambda message, _: got.append(message))
    threading.Timer(0.01, lambda: link.far.send(b"1")).start()
    while not got:
        reactor.turn(awake_s)
    assert got == [HELLO]


def test_a_thread_that_stops_ends_its_links() -> None:
    thread, link = ReactorThread("test"), FakeLink()
    thread.reactor.add(link, lambda message, payload: None)
    thread.start()
    thread.stop()
    thread.join(10)
    assert link.is_closed
    assert link.near.fileno() < 0


def test_however_often_it_is_woken_it_wakes_once(reactor: Reactor) -> None:
    for _ in range(100_000):  # more than a socket's buffer holds
        reactor.wake()
    while reactor._selector.select(0):  # it is awake, and soon it waits again
        reactor.turn()
