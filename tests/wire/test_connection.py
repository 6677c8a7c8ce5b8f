"""Connections: two of them wired back to back, or one of them and bytes that no honest peer sends."""

from collections.abc import Iterable
from typing import Any

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import pytest

from potluck.errors import (
    LocalProtocolError,
    PotluckError,
    RemoteError,
    RemoteProtocolError,
    VersionMismatchError,
)
from potluck.wire.connection import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    OPENING_TIMEOUT_S,
    Connection,
)
from potluck.wire.events import Answered, Closed, Event, Lost, Opened, Received
from potluck.wire.frame import Frame, FrameDecoder, encode
from potluck.wire.lifecycle import ENDED, TRANSITIONS, Side, State, Step
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import (
    Assign,
    Error,
    Forward,
    Goodbye,
    Hello,
    Loaded,
    Message,
    NodeInfo,
    Ping,
    Pong,
    Purpose,
    TensorHeader,
    Unload,
    Unloaded,
    WarmingUp,
    Welcome,
)


def node(letter: str, version: str = "0.1.0") -> NodeInfo:
    return NodeInfo(
        node_id=letter * 64, name=f"Computer {letter}", version=version, os="Linux", arch="x86_64"
    )


class Pair:
    """Two connections, what happened to each, and a clock."""

    def __init__(
        self,
        purpose: Purpose = "control",
        *,
        dialler: dict[str, Any] | None = None,
        listener: dict[str, Any] | None = None,
    ) -> None:
        self.now = 100.0
        self.a = Connection(
            Side.DIALLER, node("a"), now=self.now, purpose=purpose, **(dialler or {})
        )
        self.b = Connection(Side.LISTENER, node("b"), now=self.now, **(listener or {}))
        self.events: dict[Connection, list[Event]] = {self.a: [], self.b: []}
        self.errors: dict[Connection, PotluckError] = {}

    def open(self) -> "Pair":
        self.a.start()
        self.carry()
        assert self.a.state is self.b.state is State.OPEN
        for events in self.events.values():
            events.clear()
        return self

    def carry(self, *, piece: int | None = None) -> None:
        """Bring everybody's bytes to the other until nobody has any."""
        while self._carry(self.a, self.b, piece) | self._carry(self.b, self.a, piece):
            pass

    def _carry(self, sender: Connection, to: Connection, piece: int | None) -> bool:
        data = b"".join(bytes(buffer) for buffer in sender.data_to_send())
        step = piece or max(1, len(data))
        for start in range(0, len(data), step):
            to.receive_data(data[start : start + step], self.now)
            self.drain(to)
        return bool(data)

    def drain(self, connection: Connection) -> None:
        try:
            while (event := connection.next_event()) is not None:
                self.events[connection].append(event)
        except PotluckError as error:
            self.errors[connection] = error


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


def frame_of(fields: dict[str, Any]) -> bytes:
    packed = msgpack.packb(fields)
    assert isinstance(packed, bytes)
    return b"PLK\x01" + len(packed).to_bytes(4, "big") + bytes(4) + packed


def bytes_of(*messages: Message) -> bytes:
    return b"".join(encode(message)[0] for message in messages)


def sent_by(connection: Connection) -> list[Message]:
    decoder = FrameDecoder(1 << 26)
    for buffer in connection.data_to_send():
        decoder.feed(bytes(buffer))
    messages: list[Message] = []
    while (event := decoder.next_event()) is not None:
        assert isinstance(event, Frame)
        messages.append(event.message)
    return messages


# --- the handshake


@pytest.mark.parametrize("purpose", ["control", "activations", "weights"])
@pytest.mark.parametrize("piece", [None, 1, 13])
def test_both_sides_open_and_know_each_other(purpose: Purpose, piece: int | None) -> None:
    pair = Pair(purpose)
    pair.a.start()
    pair.carry(piece=piece)

    assert pair.events[pair.a] == [Opened(node("b"), purpose, 1)]
    assert pair.events[pair.b] == [Opened(node("a"), purpose, 1)]
    assert pair.b.peer == node("a")
    assert pair.b.purpose == purpose


def test_the_highest_version_that_both_speak_is_chosen() -> None:
    pair = Pair(dialler={"versions": (1, 2, 3)}, listener={"versions": (2, 3, 4)}).open()

    assert pair.a.version == pair.b.version == 3


def test_versions_without_a_common_one_are_a_sentence_on_both_sides() -> None:
    pair = Pair(dialler={"versions": (1,)}, listener={"versions": (2, 3)})
    pair.a.start()
    pair.carry()

    for connection in (pair.a, pair.b):
        error = pair.errors[connection]
        assert isinstance(error, VersionMismatchError)
        assert "Computer a runs Potluck 0.1.0 (protocol 1)" in str(error)
        assert "Computer b runs Potluck 0.1.0 (protocol 2, 3)" in str(error)
        assert "Update Potluck on Computer a." in str(error)
        assert connection.state is State.FAILED


def test_a_version_that_was_not_offered_is_a_mismatch() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    dialler.receive_data(bytes_of(Welcome(version=9, node=node("b"))), 0)

    with pytest.raises(VersionMismatchError, match=r"protocol 9.*Update Potluck on Computer a"):
        dialler.next_event()


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


def test_a_purpose_that_is_not_served_is_refused_with_a_reason() -> None:
    pair = Pair("weights", listener={"accepts": ("activations",)})
    pair.a.start()
    pair.carry()

    assert "`weights` connections are not served here" in str(pair.errors[pair.a])


def test_a_refusal_instead_of_a_welcome_is_an_error_with_the_peers_kind() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    dialler.data_to_send()
    refusal = Error(kind="untrusted_peer", message="You were removed.", data={"message": "x"})
    dialler.receive_data(bytes_of(refusal), 0)

    with pytest.raises(RemoteError, match="You were removed") as caught:
        dialler.next_event()
    assert caught.value.data["kind"] == "untrusted_peer"
    assert dialler.state is State.FAILED
    assert dialler.data_to_send() == []  # a refusal is not answered


def test_a_mismatch_may_carry_any_data() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    mismatch = Error(kind="version_mismatch", message="No.", data={"message": "x", "self": 1})
    dialler.receive_data(bytes_of(mismatch), 0)

    with pytest.raises(VersionMismatchError, match="No"):
        dialler.next_event()


HELLO = Hello(versions=(1,), purpose="control", node=node("a"))


@pytest.mark.parametrize(
    "first",
    [
        frame_of({"op": "ping", "id": 1}),
        frame_of({"op": "dance"}),
        bytes_of(Welcome(version=1, node=node("a"))),
        b"GET / HTTP/1.1\r\nHost: potluck\r\n\r\n",
        frame_of({"op": "hello", "versions": [], "purpose": "control", "node": {}}),
        b"PLK\x01" + (1 << 20).to_bytes(4, "big") + bytes(4),
    ],
    ids=["ping", "unknown", "welcome", "http", "no versions", "a large header"],
)
def test_nothing_but_a_small_hello_is_understood_first(first: bytes) -> None:
    listener = Connection(Side.LISTENER, node("b"), now=0)
    listener.receive_data(first, 0)

    with pytest.raises(RemoteProtocolError):
        listener.next_event()
    assert listener.state is State.FAILED
    (told,) = sent_by(listener)
    assert isinstance(told, Error)
    assert told.kind == "remote_protocol"
    assert listener.next_event() is None


def test_a_second_hello_is_out_of_turn(pair: Pair) -> None:
    pair.b.receive_data(bytes_of(HELLO), 100)
    pair.drain(pair.b)

    assert sent_by(pair.b)[0] == Error(
        kind="unknown_op", message="`hello` is not known on this connection.", data={"op": "hello"}
    )


def test_what_follows_the_welcome_at_once_is_read_with_the_limits_of_the_purpose() -> None:
    """The first frames arrive in one piece, the second of them larger than a handshake's."""
    a = Connection(Side.DIALLER, node("a"), now=0, purpose="activations")
    b = Connection(Side.LISTENER, node("b"), now=0)
    a.start()
    b.receive_data(b"".join(map(bytes, a.data_to_send())), 0)
    assert isinstance(b.next_event(), Opened)
    b.send(Blob(), bytes(100_000))
    a.receive_data(b"".join(map(bytes, b.data_to_send())), 0)

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


# --- messages, requests and answers


def test_messages_and_payloads_go_both_ways() -> None:
    pair = Pair("activations").open()
    forward = Forward(
        epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="I32", shape=(2,))
    )
    pair.a.send(forward, b"12345678")
    pair.b.send(forward, b"abcdefgh")
    pair.carry()

    for connection, payload in ((pair.b, b"12345678"), (pair.a, b"abcdefgh")):
        (event,) = pair.events[connection]
        assert isinstance(event, Received)
        assert event.message == forward
        assert bytes(event.payload) == payload


def test_an_answer_finds_its_request(pair: Pair) -> None:
    first = pair.a.request(Unload(epoch=1))
    second = pair.a.request(Unload(epoch=2))
    pair.carry()
    asked = [e.message for e in pair.events[pair.b] if isinstance(e, Received)]
    assert [m.id for m in asked] == [first, second]
    for message in reversed(asked):  # in any order
        pair.b.send(Unloaded(re=message.id, epoch=0))
    pair.carry()

    assert [e.request for e in pair.events[pair.a] if isinstance(e, Answered)] == [second, first]


def test_an_error_answers_any_request(pair: Pair) -> None:
    number = pair.a.request(Blob(), b"abc")
    pair.b.send(Error(re=number, kind="store", message="No disk."))
    pair.carry()

    (event,) = pair.events[pair.a]
    assert isinstance(event, Answered)
    assert event.request == number
    assert isinstance(event.message, Error)


def test_progress_is_no_answer(pair: Pair) -> None:
    pair.b.send(WarmingUp(epoch=1, progress=0.5))
    pair.carry()

    assert isinstance(pair.events[pair.a][0], Received)


def test_an_answer_of_the_wrong_kind_breaks_the_connection(pair: Pair) -> None:
    number = pair.a.request(Unload(epoch=1))
    pair.b.send(Loaded(re=number, epoch=1, seconds=1, memory_bytes=1, cache_tokens=64))
    pair.carry()

    assert "answered `unload` with `loaded`" in str(pair.errors[pair.a])
    assert pair.a.state is State.FAILED


def test_an_answer_to_nothing_breaks_the_connection(pair: Pair) -> None:
    pair.b.send(Unloaded(re=99, epoch=1))
    pair.carry()

    assert "never made" in str(pair.errors[pair.a])


def test_an_answer_that_comes_too_late_is_dropped(pair: Pair) -> None:
    number = pair.a.request(Unload(epoch=1))
    pair.a.forget(number)
    pair.b.send(Unloaded(re=number, epoch=1))
    pair.b.send(WarmingUp(epoch=1, progress=1))
    pair.carry()

    assert [type(e) for e in pair.events[pair.a]] == [Received]


def test_a_second_answer_is_dropped(pair: Pair) -> None:
    number = pair.a.request(Unload(epoch=1))
    for _ in range(2):
        pair.b.send(Unloaded(re=number, epoch=1))
    pair.carry()

    assert [type(e) for e in pair.events[pair.a]] == [Answered]


def test_only_what_is_answered_can_be_asked(pair: Pair) -> None:
    with pytest.raises(LocalProtocolError, match="unloaded"):
        pair.a.request(Unloaded(epoch=1))


# --- what is not known


def test_an_unknown_operation_is_answered_and_the_connection_lives(pair: Pair) -> None:
    pair.b.receive_data(frame_of({"op": "dance", "id": 7}), 100)
    pair.drain(pair.b)
    (answer,) = sent_by(pair.b)

    assert answer == Error(
        re=7, kind="unknown_op", message="`dance` is not known on this connection.",
        data={"op": "dance"},
    )  # fmt: skip
    pair.a.send(Ping())
    pair.a.send(Unload(epoch=1))
    pair.carry()
    assert [type(e) for e in pair.events[pair.b]] == [Received]


def test_a_message_of_another_purpose_is_unknown() -> None:
    pair = Pair("weights").open()
    pair.b.receive_data(bytes_of(Unload(id=3, epoch=1)), 100)
    pair.drain(pair.b)

    (answer,) = sent_by(pair.b)
    assert isinstance(answer, Error)
    assert (answer.kind, answer.re) == ("unknown_op", 3)


def test_a_worker_cannot_ask_what_only_a_master_may() -> None:
    pair = Pair(listener={"peer_role": "worker"}, dialler={"peer_role": "master"}).open()
    number = pair.a.request(Unload(epoch=1))
    pair.carry()

    (event,) = pair.events[pair.a]
    assert isinstance(event, Answered)
    assert event.request == number
    assert isinstance(event.message, Error)
    assert event.message.kind == "unknown_op"
    assert pair.events[pair.b] == []


def test_a_master_may_ask_and_a_worker_may_answer() -> None:
    pair = Pair(listener={"peer_role": "master"}, dialler={"peer_role": "worker"}).open()
    number = pair.a.request(Unload(epoch=1))
    pair.b.send(Unloaded(re=number, epoch=1))
    pair.carry()

    assert isinstance(pair.events[pair.a][0], Answered)
    assert isinstance(pair.events[pair.b][0], Received)


# --- heartbeats


def test_heartbeats_go_both_ways_and_measure_the_round_trip(pair: Pair) -> None:
    start = pair.now
    assert pair.a.tick(start) == start + HEARTBEAT_INTERVAL_S
    assert pair.b.tick(start) == start + HEARTBEAT_INTERVAL_S
    due = start + HEARTBEAT_INTERVAL_S
    following = pair.a.tick(due)
    pair.now = due + 0.02
    pair.carry()

    assert pair.a.rtt_s == pytest.approx(0.02)
    assert following == due + HEARTBEAT_INTERVAL_S
    assert pair.events[pair.a] == pair.events[pair.b] == []  # heartbeats are nobody's business


def test_the_round_trip_is_smoothed(pair: Pair) -> None:
    now = pair.now
    for delay in (0.08, 0.16):
        now += HEARTBEAT_INTERVAL_S
        pair.a.tick(now)
        pair.now = now + delay
        pair.carry()

    assert pair.a.rtt_s == pytest.approx(0.09)


def silent_for(connection: Connection, start: float, seconds: float) -> list[Event]:
    """Let the time pass as a shell does: a tick whenever the last one asked for it."""
    events: list[Event] = []
    when = connection.tick(start)
    while when is not None and when <= start + seconds:
        when = connection.tick(when)
        while (event := connection.next_event()) is not None:
            events.append(event)
    return events


def test_one_lost_heartbeat_is_no_death_and_two_are_none(pair: Pair) -> None:
    assert silent_for(pair.a, pair.now, 2 * HEARTBEAT_INTERVAL_S + 0.8) == []
    assert pair.a.state is State.OPEN


def test_three_missed_heartbeats_are_a_lost_peer_within_three_seconds(pair: Pair) -> None:
    (event,) = silent_for(pair.a, pair.now, 3.0)

    assert isinstance(event, Lost)
    assert "Computer b has not been heard for 2.8 seconds" in event.reason
    assert pair.a.state is State.LOST
    assert pair.a.tick(pair.now + 10) is None


def test_the_last_moment_is_counted_from_the_last_byte(pair: Pair) -> None:
    """Any byte counts, so that a peer in the middle of a large frame is alive."""
    pair.a.tick(pair.now)
    pair.a.receive_data(b"P", pair.now + 2)

    assert silent_for(pair.a, pair.now + 2.1, LOST_AFTER_S - 0.2) == []


def test_our_own_sleep_is_not_the_peers_silence(pair: Pair) -> None:
    """A laptop that was closed for an hour asks before it gives anybody up."""
    when = pair.a.tick(pair.now)
    assert when is not None
    awake = when + 3600
    following = pair.a.tick(awake)

    assert pair.a.next_event() is None
    assert following is not None
    pair.now = awake
    pair.carry()  # the peer answers the heartbeat of just now
    assert silent_for(pair.a, awake, 2 * HEARTBEAT_INTERVAL_S) == []


def test_after_our_own_sleep_a_dead_peer_is_noticed_as_quickly(pair: Pair) -> None:
    when = pair.a.tick(pair.now)
    assert when is not None
    (event,) = silent_for(pair.a, when + 3600, 3.0)

    assert isinstance(event, Lost)


def test_a_peer_that_reads_and_sends_but_answers_no_heartbeat_costs_no_memory(pair: Pair) -> None:
    now = pair.now
    for _ in range(1000):
        now += HEARTBEAT_INTERVAL_S
        pair.a.receive_data(bytes_of(Pong(re=0)), now)
        pair.a.tick(now)
        pair.a.data_to_send()

    assert len(pair.a._beats) <= 16


def test_only_control_connections_beat() -> None:
    pair = Pair("weights").open()

    assert pair.a.tick(pair.now) is None


def test_a_shell_may_want_heartbeats_elsewhere() -> None:
    pair = Pair("activations", dialler={"heartbeats": True}).open()

    assert pair.a.tick(pair.now) is not None


def test_a_ping_of_the_peer_is_answered_at_once(pair: Pair) -> None:
    pair.b.receive_data(bytes_of(Ping(id=77)), 100)
    pair.drain(pair.b)

    assert sent_by(pair.b) == [Pong(re=77)]


# --- the end


def test_goodbye_is_leaving_and_not_being_lost(pair: Pair) -> None:
    pair.a.goodbye("Quit.")
    pair.carry()
    pair.a.receive_eof()
    pair.drain(pair.a)

    assert pair.events[pair.b] == [Closed("Quit.")]
    assert pair.b.state is State.CLOSED
    assert isinstance(pair.events[pair.a][0], Closed)
    assert pair.a.state is State.CLOSED


def test_what_was_under_way_at_the_goodbye_still_arrives(pair: Pair) -> None:
    number = pair.a.request(Unload(epoch=1))
    pair.a.goodbye()
    pair.b.send(Unloaded(re=number, epoch=1))
    pair.carry()

    assert [type(e) for e in pair.events[pair.a]] == [Answered]
    assert [type(e) for e in pair.events[pair.b]] == [Received, Closed]


def test_nothing_is_sent_after_the_goodbye(pair: Pair) -> None:
    pair.a.goodbye()
    pair.a.goodbye()

    with pytest.raises(LocalProtocolError):
        pair.a.send(Ping())
    assert sent_by(pair.a) == [Goodbye()]


def test_a_stream_that_ends_without_goodbye_is_a_lost_peer(pair: Pair) -> None:
    pair.a.receive_eof()
    pair.drain(pair.a)
    pair.a.receive_eof()
    pair.drain(pair.a)

    assert pair.events[pair.a] == [Lost("Computer b closed the connection unexpectedly.")]


def test_a_leaver_that_hears_nothing_more_is_done(pair: Pair) -> None:
    pair.a.goodbye()
    (event,) = silent_for(pair.a, pair.now, 3.0)

    assert isinstance(event, Closed)


def test_after_the_end_bytes_are_dropped(pair: Pair) -> None:
    pair.a.receive_eof()
    pair.drain(pair.a)
    for _ in range(100):
        buffer = pair.a.get_buffer()
        pair.a.buffer_updated(len(buffer), 101)

    assert pair.a.next_event() is None


def test_what_breaks_the_protocol_is_told_to_the_peer_as_the_last_thing(pair: Pair) -> None:
    pair.a.receive_data(frame_of({"op": "stored", "digest": 5}), 100)
    pair.drain(pair.a)  # `stored` is unknown on control
    pair.a.receive_data(frame_of({"op": "unloaded", "epoch": "x"}), 100)
    pair.drain(pair.a)

    assert "$.epoch" in str(pair.errors[pair.a])
    assert [getattr(m, "kind", None) for m in sent_by(pair.a)] == ["unknown_op", "remote_protocol"]


def test_the_table_of_states_says_everything() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(not TRANSITIONS[state] for state in ENDED)
    reachable = {s for table in TRANSITIONS.values() for s in table.values()}
    assert reachable | {State.QUIET, State.AWAITING_HELLO} == set(State)
    for state in State:
        if state not in (State.QUIET, *ENDED):
            assert Step.END_OF_STREAM in TRANSITIONS[state]
            assert Step.SILENCE in TRANSITIONS[state]


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
def test_any_split_gives_the_same_events(piece: int) -> None:
    def events_of(pieces: Iterable[int | None]) -> list[tuple[Message, bytes]]:
        pair = Pair().open()
        pair.a.request(Unload(epoch=1))
        pair.a.request(Blob(), b"payload" * 30)
        pair.a.request(
            Assign(
                epoch=1, model_id="a" * 64, config={}, scheme="f32", layers=(0, 1), embedding=True,
                head=True, context=1, tensors=(),
            )
        )  # fmt: skip
        pair.a.goodbye("bye")
        for size in pieces:
            pair.carry(piece=size)
        return [
            (e.message, bytes(e.payload)) for e in pair.events[pair.b] if isinstance(e, Received)
        ]

    assert events_of([piece]) == events_of([None])
    assert len(events_of([piece])) == 3
