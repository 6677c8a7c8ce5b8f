"""Frames: any split gives the same events, and nothing a peer sends costs more than its limit."""

import json
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from potluck.errors import (
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    VersionMismatchError,
)
from potluck.wire.frame import (
    MAX_HEADER,
    MAX_PAYLOAD,
    Frame,
    FrameDecoder,
    KiB,
    MiB,
    UnknownOp,
    encode,
)
from potluck.wire.measuring_messages import Blob, Profile
from potluck.wire.messages import (
    MAX_HISTORY,
    Assign,
    Chunk,
    Forward,
    Message,
    Need,
    NeedTensor,
    Ping,
    Result,
    Revoked,
    Sampling,
    TensorHeader,
    TensorInfo,
)
from potluck.wire.operations import ALL
from potluck.wire.pairing_messages import PAIRING

HEX = "0123456789abcdef" * 4

FORWARD = Forward(
    epoch=3,
    session="abc",
    step=7,
    position=11,
    tensor=TensorHeader(dtype="BF16", shape=(2, 3)),
    sampling=Sampling(temperature=0.5, seed=4, history=(0, 1, 151_000, (1 << 31) - 1)),
    compute_ms=(1.5,),
)
ASSIGN = Assign(
    epoch=1,
    model_id=HEX,
    config={"architectures": ["LlamaForCausalLM"], "rope_scaling": None, "eos": [1, 2]},
    scheme="bf16",
    layers=(0, 4),
    embedding=True,
    head=False,
    context=2048,
    tensors=tuple(
        TensorInfo(name=f"model.layers.{n}.w", dtype="BF16", shape=(4, n), digest=HEX, nbytes=8 * n)
        for n in range(3)
    ),
)
EXAMPLES: list[tuple[Message, bytes]] = [
    (Ping(id=5), b""),
    (FORWARD, bytes(range(12))),
    (Result(epoch=3, session="abc", step=7, position=12, token_id=99, logprob=-0.5), b""),
    (Chunk(digest=HEX, offset=4, total=12, re=3), b"12345678"),
    (ASSIGN, b""),
    (Need(epoch=1, activation_port=9, tensors=(NeedTensor(digest=HEX, offset=3),)), b""),
    (Blob(id=1), b"x" * 1000),
    (Revoked(node_ids=(HEX,)), b""),
]


def frame_bytes(message: Message, payload: bytes = b"") -> bytes:
    header, body = encode(message, payload)
    return header + bytes(body)


def raw_frame(header: object, payload: bytes = b"") -> bytes:
    """A frame whose header no honest peer would write."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    assert isinstance(packed, bytes)
    return struct.pack("!3sBII", b"PLK", 1, len(packed), len(payload)) + packed + payload


def drained(decoder: FrameDecoder) -> Iterator[Frame | UnknownOp]:
    while (event := decoder.next_event()) is not None:
        yield event


def decoded(data: bytes, **limits: Any) -> list[Frame | UnknownOp]:
    decoder = FrameDecoder(limits.pop("max_payload", 64 * MiB), **limits)
    decoder.feed(data)
    return list(drained(decoder))


def values(events: list[Frame | UnknownOp]) -> list[tuple[Message, bytes]]:
    assert all(isinstance(event, Frame) for event in events)
    return [(e.message, bytes(e.payload)) for e in events if isinstance(e, Frame)]


# --- what honest peers send


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
        decoder.feed(data[start : start + step])
        events.extend(drained(decoder))

    assert values(events) == EXAMPLES


@pytest.mark.parametrize(("message", "payload"), EXAMPLES, ids=lambda v: type(v).__name__)
def test_every_single_split_gives_the_same_event(message: Message, payload: bytes) -> None:
    data = frame_bytes(message, payload)
    for cut in range(len(data) + 1):
        decoder = FrameDecoder(64 * MiB)
        decoder.feed(data[:cut])
        events = list(drained(decoder))
        decoder.feed(data[cut:])
        events.extend(drained(decoder))
        assert values(events) == [(message, payload)]


def receive_through_buffers(decoder: FrameDecoder, data: bytes, most: int) -> Iterator[Any]:
    """As asyncio's BufferedProtocol does it."""
    sent = 0
    while sent < len(data):
        buffer = decoder.get_buffer(-1)
        count = min(len(buffer), len(data) - sent, most)
        buffer[:count] = data[sent : sent + count]
        decoder.buffer_updated(count)
        sent += count
        yield from drained(decoder)


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
    decoder.feed(data[:100])
    assert decoder.next_event() is None
    buffer = decoder.get_buffer()
    buffer[:] = b"\2" * len(buffer)
    decoder.buffer_updated(len(buffer))
    event = decoder.next_event()

    assert isinstance(event, Frame)
    buffer[-1] = 3
    assert event.payload[-1] == 3  # the same memory


def test_payloads_are_the_readers_own() -> None:
    data = frame_bytes(FORWARD, bytes(12))
    decoder = FrameDecoder(64 * MiB)
    decoder.feed(data)
    first = decoder.next_event()
    assert isinstance(first, Frame)
    first.payload[0] = 9
    decoder.feed(data)
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


# --- what we must not send


def test_we_send_nothing_that_no_peer_accepts() -> None:
    with pytest.raises(LocalProtocolError, match="profile"):
        encode(Profile(config={"x": "y" * MAX_HEADER}, scheme="f32", tokens=1))


def test_we_send_no_history_that_no_peer_accepts() -> None:
    sampling = Sampling(history=(1,) * (MAX_HISTORY + 1))

    with pytest.raises(LocalProtocolError, match="history"):
        encode(msgspec.structs.replace(FORWARD, sampling=sampling), bytes(12))


def test_we_send_no_payload_where_none_belongs() -> None:
    with pytest.raises(LocalProtocolError, match="ping"):
        encode(Ping(), b"payload")
    with pytest.raises(LocalProtocolError, match="forward"):
        encode(FORWARD, b"short")


# --- what peers must not send


FORWARD_FIELDS: dict[str, Any] = {
    "op": "forward",
    "epoch": 1,
    "session": "s",
    "step": 1,
    "position": 0,
    "tensor": {"dtype": "F32", "shape": [1]},
}

WRONG: dict[str, tuple[object, bytes, str]] = {
    "a header that is no map": ([1, 2], b"", "not a map"),
    "an empty header": (b"", b"", "no message"),
    "half a header": (b"\x85\xa2op", b"", "no message"),
    "two values in a header": (b"\x80\x80", b"", "no message"),
    "no op": ({"id": 1}, b"", "`op`"),
    "an op that is no text": ({"op": 5}, b"", "`op`"),
    "keys that are no text": ({1: 2}, b"", "no message"),
    "a missing field": ({"op": "stored"}, b"", "digest"),
    "a wrong type": ({"op": "stored", "digest": 5}, b"", r"\$\.digest"),
    "a digest that ends a line": ({"op": "stored", "digest": HEX + "\n"}, b"", r"\$\.digest"),
    "a digest that is a path": ({"op": "stored", "digest": "../" + HEX[3:]}, b"", r"\$\.digest"),
    "a negative number": ({"op": "unload", "epoch": -1}, b"", r"\$\.epoch"),
    "a truth for a number": ({"op": "unload", "epoch": True}, b"", r"\$\.epoch"),
    "a number that is none": (
        {"op": "loaded", "epoch": 1, "seconds": float("nan"), "memory_bytes": 1},
        b"",
        r"\$\.seconds",
    ),
    "an unknown dtype": (
        FORWARD_FIELDS | {"tensor": {"dtype": "F8", "shape": [1]}},
        b"1234",
        r"\$\.tensor\.dtype",
    ),
    "too many axes": (
        FORWARD_FIELDS | {"tensor": {"dtype": "F32", "shape": [1] * 9}},
        b"1234",
        r"\$\.tensor\.shape",
    ),
    "a payload shorter than its tensor": (FORWARD_FIELDS, b"123", "a tensor of 4 bytes has 3"),
    "a payload beyond its tensor": (
        {"op": "chunk", "digest": HEX, "offset": 3, "total": 4},
        b"12",
        "beyond",
    ),
    "a payload that belongs to nothing": ({"op": "ping"}, b"1", "does not carry"),
    "a history that is no list": (
        FORWARD_FIELDS | {"sampling": {"history": b"12345"}},
        b"1234",
        "history",
    ),
    "a history with a negative token": (
        FORWARD_FIELDS | {"sampling": {"history": b"\xff\xff\xff\xff"}},
        b"1234",
        "history",
    ),
    "a tensor list that is no JSON": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b"[{",
        "`need`",
    ),
    "a tensor list of something else": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b'[{"digest": 5}]',
        r"\$\[0\]\.digest",
    ),
    "a tensor list nested without end": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b"[" * 100_000,
        "`need`",
    ),
    "an extension type": (b"\x81\xa2op\xd4\x05\x00", b"", "no message"),
    "an empty extension type": (b"\x81\xa2op\xc7\x00\x05", b"", "no message"),
    "a timestamp": (b"\x81\xa2op\xd6\xff\x00\x00\x00\x00", b"", "no message"),
    "text that is no UTF-8": (b"\x81\xa2op\xa1\xff", b"", "no message"),
    "maps nested without end": (b"\x81\xa1a" * 5000 + b"\xc0", b"", "no message"),
    "lists nested without end": (b"\x91" * 20_000 + b"\xc0", b"", "no message"),
    "a name with an escape sequence": (
        {"op": "status", "devices": [], "lent_to": "\x1b[2J"},
        b"",
        r"\$\.lent_to",
    ),
    "a name that reverses the text after it": (
        {"op": "status", "devices": [], "lent_to": "\u202egnp"},
        b"",
        r"\$\.lent_to",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_and_refused(what: str) -> None:
    header, payload, why = WRONG[what]

    with pytest.raises(RemoteProtocolError, match=why):
        decoded(raw_frame(header, payload))


def test_frames_before_a_wrong_one_are_still_delivered() -> None:
    decoder = FrameDecoder(0)
    decoder.feed(frame_bytes(Ping(id=1)) + b"GET / HTTP/1.1\r\n\r\n")
    event = decoder.next_event()

    assert isinstance(event, Frame)
    assert event.message == Ping(id=1)
    with pytest.raises(RemoteProtocolError, match="not Potluck"):
        decoder.next_event()


def test_a_newer_frame_is_a_sentence_on_versions() -> None:
    with pytest.raises(VersionMismatchError, match="Update Potluck"):
        decoded(b"PLK\x02" + bytes(8))


def test_an_unknown_operation_is_an_event_and_the_next_frame_is_read() -> None:
    unknown = raw_frame({"op": "dance", "id": 7, "steps": [1, 2]}, b"some payload")
    events = decoded(unknown + frame_bytes(Ping(id=8)))

    assert events[0] == UnknownOp("dance", 7)
    assert values(events[1:]) == [(Ping(id=8), b"")]


def test_an_unknown_operation_cannot_carry_a_wrong_id() -> None:
    ids: list[object] = [-1, 1 << 40, "7", None, True, 1.5]

    assert all(
        decoded(raw_frame({"op": "dance", "id": number})) == [UnknownOp("dance", None)]
        for number in ids
    )


def test_unknown_fields_are_ignored_so_that_later_versions_may_add_some() -> None:
    (event,) = decoded(raw_frame({"op": "ping", "id": 1, "mood": "good"}))

    assert isinstance(event, Frame)
    assert event.message == Ping(id=1)


def test_a_connection_understands_its_own_messages_only() -> None:
    assert decoded(frame_bytes(Ping()), known=PAIRING) == [UnknownOp("ping", None)]
    assert not PAIRING.keys() & ALL.keys()


@pytest.mark.parametrize(("header", "payload"), [(101, 0), (0, 51), (2**32 - 1, 2**32 - 1)])
def test_an_oversized_frame_is_refused_by_its_first_twelve_bytes(header: int, payload: int) -> None:
    announced = struct.pack("!3sBII", b"PLK", 1, header, payload)

    with pytest.raises(RemoteProtocolError, match=r"100 \+ 50 are allowed"):
        decoded(announced, max_payload=50, max_header=100)


# --- memory


def peak_of(data: bytes, max_payload: int) -> int:
    """How many bytes decoding this allocates at most, beyond the input itself."""
    tracemalloc.start()
    try:
        decoder = FrameDecoder(max_payload)
        before = tracemalloc.get_traced_memory()[0]
        for _ in receive_quietly(decoder, data):
            pass
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def receive_quietly(decoder: FrameDecoder, data: bytes) -> Iterator[object]:
    try:
        yield from receive_through_buffers(decoder, data, 1 << 16)
    except ProtocolError:
        return


def test_an_announced_payload_costs_little_until_it_arrives() -> None:
    data = struct.pack("!3sBII", b"PLK", 1, 9, 64 * MiB) + raw_frame({"op": "blob"})[12:]

    assert peak_of(data, 64 * MiB) < 4.5 * MiB


def test_an_announced_header_costs_nothing_until_it_arrives() -> None:
    data = struct.pack("!3sBII", b"PLK", 1, MAX_HEADER, 0) + b"\x81"

    assert peak_of(data, 0) < 256 * KiB


BOMBS: dict[str, bytes] = {
    "just below what is counted": (b"\xdc\x00\x3f" + (b"\xdc\x04\x00" + b"\x80" * 1024) * 63),
    "a list longer than any": b"\x81\xa1x" + b"\xdc\xff\xff" + b"\x80" * 65_535,
    "many lists of empty maps": b"\xdc\x03\xff" + (b"\xdc\x04\x00" + b"\x80" * 1024) * 1023,
    "lists of short texts": b"\xdc\x01\x5f" + (b"\xdc\x04\x00" + b"\xa2ab" * 1024) * 340,
    "lists announced long, nested": b"\xdd\x00\x00\x04\x00" * 600,
    "lists announced longer than any, nested": b"\xdd\x00\x01\x00\x00" * 600,
    "lists announced longest, nested": b"\xdd\xff\xff\xff\xff" * 600,
    "maps announced longest, nested": b"\xdf\x00\x00\x04\x00\xa1a" * 600,
    "a text announced longest": b"\xdb\xff\xff\xff\xff",
    "bytes announced longest": b"\xc6\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", BOMBS)
def test_no_header_allocates_more_than_its_limit(what: str) -> None:
    header = BOMBS[what][:MAX_HEADER]

    assert peak_of(raw_frame(header), 0) < 8 * MiB


def test_no_tensor_list_allocates_much_more_than_its_own_size() -> None:
    tensor = {"name": "", "dtype": "F32", "shape": [999] * 8, "digest": HEX, "nbytes": 0}
    item = json.dumps(tensor, separators=(",", ":"))
    payload = ("[" + ",".join([item] * 30_000) + "]").encode()
    fields = msgspec.to_builtins(ASSIGN)
    del fields["tensors"]

    assert peak_of(raw_frame(fields, payload), 32 * MiB) < 6 * len(payload)


# --- whatever else


limits = settings(deadline=2000, max_examples=300, suppress_health_check=[HealthCheck.too_slow])

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=80)
    | st.binary(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=20,
)
EVERYTHING = {**ALL, **PAIRING}
names = st.sampled_from(sorted(EVERYTHING))
near_misses = st.dictionaries(
    st.sampled_from([f for m in EVERYTHING.values() for f in m.__struct_fields__]), anything
)


def survives(data: bytes, pieces: int) -> None:
    decoder = FrameDecoder(MiB, max_header=64 * KiB, known=EVERYTHING)
    step = max(1, len(data) // pieces)
    try:
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])
            for event in drained(decoder):
                assert isinstance(event, Frame | UnknownOp)
    except ProtocolError:
        return


@limits
@given(st.binary(max_size=400), st.integers(1, 9))
@example(b"PLK\x01" + b"\xff" * 8, 1)
def test_no_bytes_crash_the_decoder(data: bytes, pieces: int) -> None:
    survives(data, pieces)


@limits
@given(st.binary(max_size=300), st.binary(max_size=50), st.integers(1, 9))
def test_no_header_crashes_the_decoder(header: bytes, payload: bytes, pieces: int) -> None:
    survives(raw_frame(header, payload), pieces)


@pytest.mark.slow
@limits
@given(names, near_misses, st.binary(max_size=50))
def test_no_field_of_any_message_crashes_the_decoder(
    op: str, fields: dict[str, Any], payload: bytes
) -> None:
    survives(raw_frame(fields | {"op": op}, payload), 3)


@limits
@given(st.sampled_from(EXAMPLES), st.data())
def test_no_flipped_bytes_of_an_honest_frame_crash_the_decoder(
    sent: tuple[Message, bytes], data: st.DataObject
) -> None:
    frame = bytearray(frame_bytes(*sent))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(frame), 2)


@limits
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_honest_frames_survive_every_split(cuts: list[int]) -> None:
    data = b"".join(frame_bytes(m, p) for m, p in EXAMPLES)
    decoder = FrameDecoder(64 * MiB)
    events: list[Frame | UnknownOp] = []
    start, index = 0, 0
    while start < len(data):
        stop = start + cuts[index % len(cuts)]
        decoder.feed(data[start:stop])
        events.extend(drained(decoder))
        start, index = stop, index + 1

    assert values(events) == EXAMPLES


@pytest.mark.parametrize(
    "header",
    [
        {"op": "error", "kind": "k", "message": "\x1b]0;owned\x07no\nspace \u202eleft\x9b2J"},
        {"op": "rejected", "digest": "0" * 64, "kind": "k", "message": "\x1b[2Jno\nspace"},
        {"op": "goodbye", "reason": "\x1b[2Jno\nspace"},
    ],
)
def test_a_sentence_of_a_peer_moves_no_cursor(header: dict[str, object]) -> None:
    ((message, _),) = values(decoded(raw_frame(header)))
    text = str(getattr(message, "reason", None) or getattr(message, "message", None))

    assert "no\nspace" in text
    assert all(character.isprintable() or character == "\n" for character in text)
