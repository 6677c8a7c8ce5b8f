"""How a connection opens, and whom it does not open for."""

import pytest
from connection_pair import Pair, bytes_of, node, receive, sent_by
from frames import raw_frame

from potluck.errors import LocalProtocolError, RemoteError, RemoteProtocolError
from potluck.wire.connection import OPENING_TIMEOUT_S, Connection
from potluck.wire.events import Lost, Opened, Received
from potluck.wire.lifecycle import Side, State
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import Error, Hello, Ping, Purpose, Welcome
from potluck.wire.versions import PROTOCOL_VERSIONS


@pytest.mark.parametrize("purpose", ["control", "activations", "weights", "ranks"])
@pytest.mark.parametrize("piece", [None, 1, 13])
def test_both_sides_open_and_know_each_other(purpose: Purpose, piece: int | None) -> None:
    pair = Pair(purpose)
    pair.a.start()
    pair.carry(piece=piece)

    version = max(PROTOCOL_VERSIONS)
    assert pair.events[pair.a] == [Opened(node("b"), purpose, version)]
    assert pair.events[pair.b] == [Opened(node("a"), purpose, version)]
    assert pair.b.peer == node("a")
    assert pair.b.purpose == purpose


def test_a_peer_that_calls_itself_otherwise_than_its_certificate_is_refused() -> None:
    pair = Pair(listener={"peer_id": "f" * 64})
    pair.a.start()
    pair.carry()

    assert "its certificate says ffffffff" in str(pair.errors[pair.b])
    assert isinstance(pair.errors[pair.a], RemoteError)

    pair = Pair(dialler={"peer_id": "f" * 64})
    pair.a.start()
    pair.carry()

    assert isinstance(pair.errors[pair.a], RemoteProtocolError)


def test_a_refusal_instead_of_a_welcome_is_an_error_with_the_peers_kind() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    dialler.data_to_send()
    refusal = Error(kind="untrusted_peer", message="You were removed.", data={"message": "x"})
    receive(dialler, bytes_of(refusal), 0)

    with pytest.raises(RemoteError, match="You were removed") as caught:
        dialler.next_event()
    assert caught.value.data["kind"] == "untrusted_peer"
    assert dialler.state is State.FAILED
    assert dialler.data_to_send() == []  # a refusal is not answered


HELLO = Hello(versions=(1,), purpose="control", node=node("a"))


@pytest.mark.parametrize(
    "first",
    [
        raw_frame({"op": "ping", "id": 1}),
        raw_frame({"op": "dance"}),
        bytes_of(Welcome(version=1, node=node("a"))),
        b"GET / HTTP/1.1\r\nHost: potluck\r\n\r\n",
        raw_frame({"op": "hello", "versions": [], "purpose": "control", "node": {}}),
        b"PLK\x01" + (1 << 20).to_bytes(4, "big") + bytes(4),
    ],
    ids=["ping", "unknown", "welcome", "http", "no versions", "a large header"],
)
def test_nothing_but_a_small_hello_is_understood_first(first: bytes) -> None:
    listener = Connection(Side.LISTENER, node("b"), now=0)
    receive(listener, first, 0)

    with pytest.raises(RemoteProtocolError):
        listener.next_event()
    assert listener.state is State.FAILED
    (told,) = sent_by(listener)
    assert isinstance(told, Error)
    assert told.kind == "remote_protocol"
    assert listener.next_event() is None


def test_a_second_hello_is_out_of_turn(pair: Pair) -> None:
    receive(pair.b, bytes_of(HELLO), 100)
    pair.drain(pair.b)

    assert sent_by(pair.b)[0] == Error(
        kind="unknown_op", message="`hello` is not known on this connection.", data={"op": "hello"}
    )


def test_what_follows_the_welcome_at_once_is_read_with_the_limits_of_the_purpose() -> None:
    """The first frames arrive in one piece, the second of them larger than a handshake's."""
    a = Connection(Side.DIALLER, node("a"), now=0, purpose="activations")
    b = Connection(Side.LISTENER, node("b"), now=0)
    a.start()
    receive(b, b"".join(map(bytes, a.data_to_send())), 0)
    assert isinstance(b.next_event(), Opened)
    b.send(Blob(), bytes(100_000))
    receive(a, b"".join(map(bytes, b.data_to_send())), 0)

    assert isinstance(a.next_event(), Opened)
    event = a.next_event()
    assert isinstance(event, Received)
    assert len(event.payload) == 100_000


def test_nobody_waits_for_ever_for_a_handshake() -> None:
    for side in Side:
        purpose: Purpose | None = "control" if side is Side.DIALLER else None
        connection = Connection(side, node("a"), now=0, purpose=purpose)
        if side is Side.DIALLER:
            connection.start()
        assert connection.tick(0) == OPENING_TIMEOUT_S
        assert connection.next_event() is None
        assert connection.tick(OPENING_TIMEOUT_S) is None
        event = connection.next_event()
        assert isinstance(event, Lost)
        assert "handshake" in event.reason


def test_only_the_dialler_starts_and_only_once() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()

    with pytest.raises(LocalProtocolError):
        dialler.start()
    with pytest.raises(LocalProtocolError):
        Connection(Side.LISTENER, node("b"), now=0).start()


def test_nothing_is_sent_before_the_connection_is_open() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()

    with pytest.raises(LocalProtocolError, match="wait for welcome"):
        dialler.send(Ping())
