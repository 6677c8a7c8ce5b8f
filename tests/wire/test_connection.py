"""Open connections: messages, answers, what is not known, and the end."""

from collections.abc import Iterable

import pytest
from connection_pair import Pair, bytes_of, receive, sent_by
from frames import raw_frame

from potluck.errors import LocalProtocolError
from potluck.wire.activation_messages import Forward, TensorHeader
from potluck.wire.events import Answered, Closed, Lost, Received
from potluck.wire.lifecycle import State
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import (
    Assign,
    Error,
    Goodbye,
    Loaded,
    Message,
    Ping,
    Unload,
    Unloaded,
    WarmingUp,
)


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


def test_an_unknown_operation_is_answered_and_the_connection_lives(pair: Pair) -> None:
    receive(pair.b, raw_frame({"op": "dance", "id": 7}), 100)
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
    receive(pair.b, bytes_of(Unload(id=3, epoch=1)), 100)
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


def test_after_the_end_bytes_are_dropped(pair: Pair) -> None:
    pair.a.receive_eof()
    pair.drain(pair.a)
    for _ in range(100):
        buffer = pair.a.get_buffer()
        pair.a.buffer_updated(len(buffer), 101)

    assert pair.a.next_event() is None


def test_what_breaks_the_protocol_is_told_to_the_peer_as_the_last_thing(pair: Pair) -> None:
    receive(pair.a, raw_frame({"op": "stored", "digest": 5}), 100)
    pair.drain(pair.a)  # `stored` is unknown on control
    receive(pair.a, raw_frame({"op": "unloaded", "epoch": "x"}), 100)
    pair.drain(pair.a)

    assert "$.epoch" in str(pair.errors[pair.a])
    assert [getattr(m, "kind", None) for m in sent_by(pair.a)] == ["unknown_op", "remote_protocol"]


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
