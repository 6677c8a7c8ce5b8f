"""Links and work in one queue, by whichever thread has time."""

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from potluck.net import reactor as reactor_module
from potluck.net.reactor import Delivery, Reactor, ReactorThread
from potluck.wire.messages import CloseSession, Forward, Message, Sampling, TensorHeader

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


def do_all(reactor: Reactor) -> None:
    while reactor.work():
        pass


def test_what_arrives_becomes_work_in_order(reactor: Reactor) -> None:
    link, got = FakeLink(), list[str]()
    reactor.add(link, lambda message, _: got.append("message"))
    reactor.turn()  # for the sake of the new link
    link.far.send(b"12")
    reactor.put(lambda: got.append("work"))
    while len(got) != 3:
        reactor.turn()
        do_all(reactor)
    assert sorted(got) == ["message", "message", "work"]


def test_what_came_with_the_handshake_is_not_waited_for(reactor: Reactor) -> None:
    link, got = FakeLink(), list[Message]()
    link.waiting.append((HELLO, memoryview(b"")))
    reactor.add(link, lambda message, _: got.append(message))
    reactor.turn()
    reactor.turn()
    do_all(reactor)
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
        do_all(reactor)


def test_reading_stops_while_too_much_waits(
    reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor_module, "INBOX_LIMIT", 2000)
    link, got = FakeLink(), list[Message]()
    reactor.add(link, lambda message, _: got.append(message))
    reactor.turn()
    link.far.send(b"12")  # two messages of 1124 bytes each
    while reactor._taken == 0:
        reactor.turn()
    link.far.send(b"3")
    reactor.wake()
    reactor.turn()
    assert reactor._taken == 2 * 1124
    do_all(reactor)
    reactor.wake()
    while len(got) < 3:
        reactor.turn()
        do_all(reactor)


def test_work_wakes_a_thread_that_waits() -> None:
    thread = ReactorThread("test")
    thread.start()
    done = threading.Event()
    thread.reactor.put(done.set)
    assert done.wait(10)
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_work_that_fails_is_in_the_log_and_the_thread_lives_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    thread = ReactorThread("test")
    thread.start()
    done = threading.Event()
    thread.reactor.put(fail)
    thread.reactor.put(done.set)
    assert done.wait(10)
    assert "a bug" in caplog.text
    thread.stop()
    thread.join(10)


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


def test_a_history_counts_as_what_it_takes(reactor: Reactor) -> None:
    link = FakeLink()
    sampling = Sampling(repetition_penalty=1.1, history=(1,) * 1000)
    tensor = TensorHeader(dtype="I32", shape=(1,))
    step = Forward(epoch=1, session="s", step=1, position=0, tensor=tensor, sampling=sampling)
    link.waiting.append((step, memoryview(b"1234")))
    reactor.add(link, lambda message, payload: None)
    reactor.turn()
    assert reactor._taken > 8 * 1000


@pytest.mark.parametrize("awake_s", [1e-9, 60.0])
def test_who_waits_awake_takes_what_comes_and_sleeps_in_the_end(
    reactor: Reactor, awake_s: float
) -> None:
    link, got = FakeLink(), list[Message]()
    reactor.add(link, lambda message, _: got.append(message))
    threading.Timer(0.01, lambda: link.far.send(b"1")).start()
    while not got:
        reactor.turn(awake_s)
        do_all(reactor)
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
    done: list[int] = []
    reactor.put(lambda: done.append(1))
    while not done:
        reactor.turn()
        do_all(reactor)
