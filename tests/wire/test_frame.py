"""Frames of honest peers: any split gives the same events."""

import struct

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import pytest
from frames import (
    ASSIGN,
    EXAMPLES,
    FORWARD,
    HEX,
    decoded,
    drained,
    feed,
    frame_bytes,
    receive_through_buffers,
    values,
)

from potluck.errors import LocalProtocolError
from potluck.wire.activation_messages import MAX_HISTORY, Forward, Sampling, TensorHeader
from potluck.wire.codec import UnknownOp
from potluck.wire.frame import (
    MAX_HEADER,
    MAX_PAYLOAD,
    Frame,
    FrameDecoder,
    KiB,
    MiB,
    encode,
)
from potluck.wire.measuring_messages import Blob, Profile
from potluck.wire.messages import Assign, Chunk, Message, Ping


def test_a_frame_is_as_the_document_says_byte_by_byte() -> None:
    header, payload = encode(Chunk(digest=HEX, offset=0, total=3), b"abc")
    packed = msgpack.packb({"op": "chunk", "digest": HEX, "offset": 0, "total": 3})
    assert isinstance(packed, bytes)

    assert header[:12] == b"PLK\x01" + len(packed).to_bytes(4, "big") + b"\0\0\0\x03"
    assert msgpack.unpackb(header[12:]) == msgpack.unpackb(packed)
    assert bytes(payload) == b"abc"


@pytest.mark.parametrize(("message", "payload"), EXAMPLES, ids=lambda v: type(v).__name__)
def test_what_is_encoded_is_decoded(message: Message, payload: bytes) -> None:
    assert values(decoded(frame_bytes(message, payload))) == [(message, payload)]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 11, 12, 13, 100])
def test_any_split_gives_the_same_events(step: int) -> None:
    data = b"".join(frame_bytes(m, p) for m, p in EXAMPLES)
    decoder = FrameDecoder(64 * MiB)
    events: list[Frame | UnknownOp] = []
    for start in range(0, len(data), step):
        feed(decoder, data[start : start + step])
        events.extend(drained(decoder))

    assert values(events) == EXAMPLES


@pytest.mark.parametrize(("message", "payload"), EXAMPLES, ids=lambda v: type(v).__name__)
def test_every_single_split_gives_the_same_event(message: Message, payload: bytes) -> None:
    data = frame_bytes(message, payload)
    for cut in range(len(data) + 1):
        decoder = FrameDecoder(64 * MiB)
        feed(decoder, data[:cut])
        events = list(drained(decoder))
        feed(decoder, data[cut:])
        events.extend(drained(decoder))
        assert values(events) == [(message, payload)]


@pytest.mark.parametrize("most", [1000, 70_000, 10 * MiB])
def test_payloads_arrive_whole_through_the_buffers_of_the_decoder(most: int) -> None:
    payload = bytes(range(256)) * 36_000  # 9 MB: more than is allocated as announced
    sent: list[tuple[Message, bytes]] = [(Blob(id=1), payload), (FORWARD, bytes(12)), (Blob(), b"")]
    data = b"".join(frame_bytes(m, p) for m, p in sent)
    events = list(receive_through_buffers(FrameDecoder(64 * MiB), data, most))

    assert values(events) == sent


def test_a_large_payload_is_received_into_the_memory_that_the_reader_gets() -> None:
    decoder = FrameDecoder(64 * MiB)
    data = frame_bytes(Blob(), b"\1" * MiB)
    feed(decoder, data[:100])
    assert decoder.missing == 0
    assert decoder.next_event() is None
    buffer = decoder.get_buffer()
    assert decoder.missing == len(buffer)
    buffer[:] = b"\2" * len(buffer)
    decoder.buffer_updated(len(buffer))
    event = decoder.next_event()

    assert isinstance(event, Frame)
    buffer[-1] = 3
    assert event.payload[-1] == 3  # the same memory


def test_payloads_are_the_readers_own() -> None:
    data = frame_bytes(FORWARD, bytes(12))
    decoder = FrameDecoder(64 * MiB)
    feed(decoder, data)
    first = decoder.next_event()
    assert isinstance(first, Frame)
    first.payload[0] = 9
    feed(decoder, data)
    second = decoder.next_event()

    assert isinstance(second, Frame)
    assert (first.payload[0], second.payload[0]) == (9, 0)


def test_a_payload_of_any_shape_is_sent_as_it_lies() -> None:
    numbers = memoryview(struct.pack("<6i", *range(6))).cast("i", (2, 3))
    header, payload = encode(
        Forward(
            epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="I32", shape=(2, 3))
        ),
        numbers,
    )

    assert bytes(payload) == struct.pack("<6i", *range(6))
    assert len(header) > 12


@pytest.mark.slow
def test_a_list_of_a_hundred_thousand_tensors_passes() -> None:
    """A mixture of experts; its header stays as small as any."""
    tensors = ASSIGN.tensors[:1] * 98_304
    message = Assign(
        epoch=1, model_id=HEX, config={}, scheme="f32", layers=(0, 1), embedding=False, head=False,
        context=1, tensors=tensors,
    )  # fmt: skip
    header, payload = encode(message)

    assert len(header) < KiB
    assert len(payload) < MAX_PAYLOAD["control"]
    assert values(decoded(header + bytes(payload))) == [(message, b"")]


def test_a_whole_history_passes() -> None:
    message = Forward(
        epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="I32", shape=(0,)),
        sampling=Sampling(history=tuple(range(MAX_HISTORY))),
    )  # fmt: skip

    assert values(decoded(frame_bytes(message))) == [(message, b"")]


def test_we_send_nothing_that_no_peer_accepts() -> None:
    with pytest.raises(LocalProtocolError, match="profile"):
        encode(Profile(config={"x": "y" * MAX_HEADER}, scheme="f32", tokens=1))


def test_we_send_no_payload_where_none_belongs() -> None:
    with pytest.raises(LocalProtocolError, match="ping"):
        encode(Ping(), b"payload")
    with pytest.raises(LocalProtocolError, match="forward"):
        encode(FORWARD, b"short")
