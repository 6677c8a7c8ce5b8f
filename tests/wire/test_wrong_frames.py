"""Frames that no honest peer sends: each is named and refused, and none of them costs much."""

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from frames import (
    ASSIGN,
    HEX,
    decoded,
    feed,
    frame_bytes,
    raw_frame,
    receive_through_buffers,
    values,
)

from potluck.errors import ProtocolError, RemoteProtocolError, VersionMismatchError
from potluck.wire.codec import UnknownOp
from potluck.wire.frame import MAX_HEADER, Frame, FrameDecoder, KiB, MiB
from potluck.wire.messages import Ping
from potluck.wire.operations import ALL
from potluck.wire.pairing_messages import PAIRING

FORWARD_FIELDS: dict[str, Any] = {
    "op": "forward",
    "epoch": 1,
    "session": "s",
    "step": 1,
    "position": 0,
    "tensor": {"dtype": "F32", "shape": [1]},
}


WRONG: dict[str, tuple[object, bytes, str]] = {
    "a header that is no map": ([1, 2], b"", "no message"),
    "an empty header": (b"", b"", "no message"),
    "half a header": (b"\x85\xa2op", b"", "no message"),
    "two values in a header": (b"\x80\x80", b"", "no message"),
    "no op": ({"id": 1}, b"", "`op`"),
    "an op that is no text": ({"op": 5}, b"", "no message"),
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
    "a tensor list that is no MessagePack": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b"[{",
        "`need`",
    ),
    "a tensor list of something else": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b"\x91\x81\xa6digest\x05",
        r"\$\[0\]\.digest",
    ),
    "a tensor list nested without end": (
        {"op": "need", "epoch": 1, "activation_port": 1},
        b"\x91" * 100_000,
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
    feed(decoder, frame_bytes(Ping(id=1)) + b"GET / HTTP/1.1\r\n\r\n")
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
    payload = msgspec.msgpack.encode([tensor] * 10_000)
    fields = msgspec.to_builtins(ASSIGN)
    del fields["tensors"]

    assert peak_of(raw_frame(fields, payload), 32 * MiB) < 6 * len(payload)
