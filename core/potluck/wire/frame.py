"""Frames: the bytes of one message and its payload on the wire. No I/O.

    offset  bytes  field
         0      3  magic, `PLK`
         3      1  version of the frame, 1
         4      4  length of the header, unsigned, big-endian
         8      4  length of the payload, unsigned, big-endian
        12      …  header: one message as a MessagePack map
         …      …  payload: raw bytes

Payload bytes never pass through MessagePack: they are written from the sender's memory, and
received into the buffer that the reader gets. Lists that grow with the model (`assign`, `need`) are
sent as payload, encoded in MessagePack, so that a header stays small.

Rules of the file:
- Memory is allocated for bytes that have arrived. Announced bytes get 4 MiB at most.
- Whatever a peer sends, the result is an event, None (more bytes needed) or a ProtocolError.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from potluck.errors import LocalProtocolError, RemoteProtocolError, VersionMismatchError
from potluck.wire.codec import UnknownOp, decode_header, decode_list, encode_header
from potluck.wire.messages import Message
from potluck.wire.operations import ALL, BULK, Table, check_payload, op_of

Buffer: TypeAlias = bytes | bytearray | memoryview

KiB = 1 << 10
MiB = 1 << 20

MAGIC: Final = b"PLK"
FRAME_VERSION: Final = 1

MAX_HEADER: Final = MiB  # a config.json has a few KiB; 128 Ki tokens of history are 640 KiB at most
MAX_HANDSHAKE: Final = 64 * KiB  # a hello with 16 devices has 3 KiB
MAX_PAYLOAD: Final[Mapping[str, int]] = {
    "handshake": 0,
    "control": 32 * MiB,  # 98,304 tensors in an `assign` are 16 MiB
    "activations": 64 * MiB,  # 1024 tokens of 16,384 values in F32
    "weights": 16 * MiB,  # a larger chunk only makes a resume more expensive
    "ranks": 64 * MiB,  # the rows of a sum, as large as hidden states in F32
    "wheels": 16 * MiB,  # as weights
}

_PREAMBLE: Final = struct.Struct("!3sBII")
_STAGING: Final = 64 * KiB  # one read of this size holds several decode steps
_TRUSTED_PAYLOAD: Final = 4 * MiB  # allocated when announced: a usual chunk; beyond, as it arrives


@dataclass(frozen=True, slots=True)
class Frame:
    """A message that has arrived whole. The payload belongs to the reader."""

    message: Message
    payload: memoryview


_NOTHING: Final = memoryview(b"")
_EMPTY: Final = bytearray()


def encode(message: Message, payload: Buffer = b"") -> tuple[bytes, Buffer]:
    """Encode one frame as two buffers, for one gathered write.

    Raises:
        LocalProtocolError: the message or its payload is larger than any peer accepts.
    """
    header, items = encode_header(message)
    payload = memoryview(payload if items is None else items).cast("B")  # any shape, as in memory
    nbytes = len(payload)
    if items is None and (wrong := check_payload(message, nbytes)):
        raise LocalProtocolError(f"We would send `{op_of(message)}` with {wrong}.")
    if len(header) > MAX_HEADER or nbytes > MAX_PAYLOAD["activations"]:
        raise LocalProtocolError(
            f"We would send `{op_of(message)}` of {len(header)} + {nbytes} bytes, which no peer accepts."
        )
    return _PREAMBLE.pack(MAGIC, FRAME_VERSION, len(header), nbytes) + header, payload


class FrameDecoder:
    """Decodes bytes, in pieces of any size, into frames.

    After `buffer_updated`, call `next_event` until it returns None. The limits are
    attributes, so that a connection can raise them when it knows its peer. New limits apply to
    frames whose preamble has not been read yet.
    """

    def __init__(
        self, max_payload: int, *, max_header: int = MAX_HEADER, known: Table = ALL
    ) -> None:
        self.max_payload = max_payload
        self.max_header = max_header
        self.known = known
        self._staging = bytearray(_STAGING)
        self._start = 0  # start of the bytes in staging that are not decoded yet
        self._end = 0
        self._lengths: tuple[int, int] | None = None  # lengths of header and payload, once known
        self._event: Message | UnknownOp | None = None  # set once the header is decoded
        self._payload = _EMPTY
        self._received = 0  # bytes of the payload so far
        self._direct = False  # whether the last get_buffer returned the payload's own memory

    @property
    def missing(self) -> int:
        """Bytes of the payload under way that were not received yet."""
        if self._lengths is None or self._event is None:
            return 0
        return self._lengths[1] - self._received

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes. The next call must be `buffer_updated`."""
        self._direct = self._wants_payload()
        if self._direct:
            if self._received == len(self._payload):
                self._grow_payload()
            return memoryview(self._payload)[self._received :]
        self._make_room()
        return memoryview(self._staging)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` bytes at the beginning of the buffer from `get_buffer`."""
        if self._direct:
            self._received += nbytes
        else:
            self._end += nbytes

    def next_event(self) -> Frame | UnknownOp | None:
        """Return the next whole frame, or None if more bytes are needed.

        Raises:
            RemoteProtocolError: the bytes are not a frame that this connection allows. The decoder
                cannot continue: close the connection.
            VersionMismatchError: the frame has a version that this program does not read.
        """
        if self._event is None and not self._read_header():
            return None
        assert self._lengths is not None
        total = self._lengths[1]
        while self._received < total and self._start < self._end:
            self._take_staged()
        if self._received < total:
            return None
        event, payload = self._event, self._payload
        self._lengths, self._event, self._payload, self._received = None, None, _EMPTY, 0
        assert event is not None
        if isinstance(event, UnknownOp):
            return event
        if type(event) in BULK:
            return Frame(decode_list(event, payload), _NOTHING)
        return Frame(event, memoryview(payload) if total else _NOTHING)

    def _read_header(self) -> bool:
        """Decode the preamble and the header as soon as they are whole."""
        if self._lengths is None:
            if self._end - self._start < _PREAMBLE.size:
                return False
            self._lengths = self._checked_lengths()
            self._start += _PREAMBLE.size
        header_bytes, payload_bytes = self._lengths
        stop = self._start + header_bytes
        if stop > self._end:
            return False
        with memoryview(self._staging)[self._start : stop] as header:
            self._event = decode_header(header, self.known)
        if not isinstance(self._event, UnknownOp):
            _check_payload(self._event, payload_bytes)
        self._start = stop
        if payload_bytes <= self._end - stop:  # all bytes are here, as in every decode step
            self._start = stop + payload_bytes
            self._payload = self._staging[stop : self._start]
            self._received = payload_bytes
        else:
            self._payload = bytearray(min(payload_bytes, _TRUSTED_PAYLOAD))
        return True

    def _checked_lengths(self) -> tuple[int, int]:
        magic, version, header_bytes, payload_bytes = _PREAMBLE.unpack_from(
            self._staging, self._start
        )
        if magic != MAGIC:
            raise RemoteProtocolError("What answers there is not Potluck: its bytes are no frame.")
        if version != FRAME_VERSION:
            raise VersionMismatchError(
                f"The other computer writes frames of version {version}, this one reads version"
                f" {FRAME_VERSION}. Update Potluck on the older of the two."
            )
        if header_bytes > self.max_header or payload_bytes > self.max_payload:
            raise RemoteProtocolError(
                f"The peer announced a frame of {header_bytes} + {payload_bytes} bytes, where"
                f" {self.max_header} + {self.max_payload} are allowed."
            )
        return header_bytes, payload_bytes

    def _wants_payload(self) -> bool:
        """Whether the next bytes belong to a payload and staging is empty."""
        return (
            self._event is not None
            and self._lengths is not None
            and self._received < self._lengths[1]
            and self._start == self._end
        )

    def _take_staged(self) -> None:
        if self._received == len(self._payload):
            self._grow_payload()
        count = min(len(self._payload) - self._received, self._end - self._start)
        stop = self._start + count
        self._payload[self._received : self._received + count] = self._staging[self._start : stop]
        self._start = stop
        self._received += count

    def _grow_payload(self) -> None:
        """Double the payload's memory, in a new bytearray: an exported one cannot be resized."""
        assert self._lengths is not None
        grown = bytearray(min(self._lengths[1], 2 * len(self._payload)))
        grown[: self._received] = self._payload
        self._payload = grown

    def _make_room(self) -> None:
        """Make free memory at the end of staging; bytes that wait there move to the front."""
        waiting = self._end - self._start
        if waiting == len(self._staging):
            self._replace_staging(2 * waiting)
        elif not waiting and len(self._staging) > _STAGING:
            self._replace_staging(_STAGING)  # shrink after a large header
        elif self._start:
            self._staging[:waiting] = self._staging[self._start : self._end]
        self._start, self._end = 0, waiting

    def _replace_staging(self, size: int) -> None:
        staging = bytearray(size)
        waiting = self._end - self._start
        staging[:waiting] = self._staging[self._start : self._end]
        self._staging = staging


def _check_payload(message: Message, payload_bytes: int) -> None:
    """Refuse a payload before its memory is allocated."""
    if wrong := check_payload(message, payload_bytes):
        op = op_of(message)
        raise RemoteProtocolError(f"The peer sent `{op}` with {wrong}.", op=op)
