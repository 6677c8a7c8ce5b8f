"""No bytes crash the decoder, whatever they are."""

from typing import Any

import pytest
from frames import (
    EXAMPLES,
    drained,
    feed,
    frame_bytes,
    raw_frame,
    values,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from potluck.errors import ProtocolError
from potluck.wire.codec import UnknownOp
from potluck.wire.frame import Frame, FrameDecoder, KiB, MiB
from potluck.wire.messages import Message
from potluck.wire.operations import ALL
from potluck.wire.pairing_messages import PAIRING

limits = settings(deadline=2000, max_examples=300, suppress_health_check=[HealthCheck.too_slow])

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=80)
    | st.binary(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=5,
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
            feed(decoder, data[start : start + step])
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
        feed(decoder, data[start:stop])
        events.extend(drained(decoder))
        start, index = stop, index + 1

    assert values(events) == EXAMPLES
