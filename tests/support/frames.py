"""Frames as honest peers write them, and frames that no honest peer would write."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from potluck.wire.activation_messages import Forward, Result, Sampling, TensorHeader
from potluck.wire.codec import UnknownOp
from potluck.wire.frame import Buffer, Frame, FrameDecoder, MiB, encode
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import (
    Assign,
    Chunk,
    Message,
    Need,
    NeedTensor,
    Ping,
    Revoked,
    TensorInfo,
)

HEX = "0123456789abcdef" * 4


def feed(decoder: FrameDecoder, data: Buffer) -> None:
    """Give a decoder all of these bytes, as a socket would."""
    fill(decoder.get_buffer, decoder.buffer_updated, data)


def fill(
    get_buffer: Callable[[], memoryview], updated: Callable[[int], None], data: Buffer
) -> None:
    """Put all of these bytes into one buffer after the other."""
    view = memoryview(data)
    while view:
        target = get_buffer()
        count = min(len(target), len(view))
        target[:count] = view[:count]
        updated(count)
        view = view[count:]


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
    """Encode a frame with a header that no honest peer would write."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    assert isinstance(packed, bytes)
    return struct.pack("!3sBII", b"PLK", 1, len(packed), len(payload)) + packed + payload


def drained(decoder: FrameDecoder) -> Iterator[Frame | UnknownOp]:
    while (event := decoder.next_event()) is not None:
        yield event


def decoded(data: bytes, **limits: Any) -> list[Frame | UnknownOp]:
    decoder = FrameDecoder(limits.pop("max_payload", 64 * MiB), **limits)
    feed(decoder, data)
    return list(drained(decoder))


def values(events: list[Frame | UnknownOp]) -> list[tuple[Message, bytes]]:
    assert all(isinstance(event, Frame) for event in events)
    return [(e.message, bytes(e.payload)) for e in events if isinstance(e, Frame)]


def receive_through_buffers(decoder: FrameDecoder, data: bytes, most: int) -> Iterator[Any]:
    """Feed bytes to the decoder in the way of asyncio's BufferedProtocol."""
    sent = 0
    while sent < len(data):
        buffer = decoder.get_buffer()
        count = min(len(buffer), len(data) - sent, most)
        buffer[:count] = data[sent : sent + count]
        decoder.buffer_updated(count)
        sent += count
        yield from drained(decoder)
