"""Encodes messages as header bytes, and long lists as payloads, and decodes both.

Everything is MessagePack. `msgspec` reads and writes all messages with declared fields: it builds
nothing that is not declared, and refuses a list by its announced length (4,294,967,295 elements in
18 µs, without allocating). A token's `forward` takes 0.7 µs to decode. To unpack with `msgpack`
first and then convert would be slower: 46 µs instead of 9 for a `status`.

A model's `config.json` has no declared fields. Messages that carry one are therefore unpacked by
`msgpack`, whose unpacker has limits, and then converted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from potluck.errors import RemoteProtocolError
from potluck.wire.fields import Count
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import Assign, Message, Need
from potluck.wire.operations import ALL, BULK, Table, op_of
from potluck.wire.pairing_messages import PAIRING
from potluck.wire.passing_messages import Expect, PassOn
from potluck.wire.spare_messages import Keep, Keeping

_UNTYPED: Final = (Assign, Keep, Profile)  # messages with a `config`

# The longest container that `msgpack` may build. It allocates containers by their announced length,
# up to 512 deep: 1024 elements of 8 bytes at each depth are 4 MiB. The longest list of a
# config.json has a few hundred entries.
_MAX_LENGTH: Final = 1024
# An empty map is one byte on the wire and 72 in memory. A header of 64 KiB can therefore take at
# most 5 MiB. In a larger header the values are counted, which costs a call per container.
_COUNTED_ABOVE: Final = 64 << 10
_MAX_VALUES: Final = 1 << 16
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Operation(msgspec.Struct):
    """The field of a header that is read first; other fields are skipped."""

    op: str


class _Request(_Operation):
    id: Count | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_read_operation: Final = msgspec.msgpack.Decoder(_Operation).decode
_read_request: Final = msgspec.msgpack.Decoder(_Request).decode
_decoders: Final[dict[type[Message], Callable[[memoryview], Message]]] = {
    kind: msgspec.msgpack.Decoder(kind).decode for kind in {*ALL.values(), *PAIRING.values()}
}
_list_decoders: Final[dict[type[Message], Callable[[bytearray], Any]]] = {
    kind: msgspec.msgpack.Decoder(items).decode for kind, items in BULK.items()
}
# The package has no annotations, so its function is annotated here.
_unpack: Final = cast("Callable[..., object]", msgpack.unpackb)


@dataclass(frozen=True, slots=True)
class UnknownOp:
    """A well-formed message whose operation this connection does not know."""

    op: str
    id: int | None


def encode_header(message: Message) -> tuple[bytes, bytes | None]:
    """Encode a message's header, and its long list as a payload if it has one."""
    if not isinstance(message, (Assign, Need, Expect, PassOn, Keep, Keeping)):
        return _encode(message), None
    return _encode(msgspec.structs.replace(message, tensors=())), _encode(message.tensors)


def decode_header(header: memoryview, known: Table) -> Message | UnknownOp:
    """Decode the message in a header. Its long list is empty until `decode_list`.

    Raises:
        RemoteProtocolError: the header is not MessagePack, or a field is not as declared.
    """
    try:
        op = _read_operation(header).op
    except _MALFORMED as error:
        raise RemoteProtocolError(f"The peer sent a header that is no message: {error}.") from error
    if (kind := known.get(op)) is None:
        return UnknownOp(op[:64], _request_id(header))
    try:
        if kind in _UNTYPED:
            return msgspec.convert(_unpack_within_limits(header), kind)
        return _decoders[kind](header)
    except (*_MALFORMED, ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"The peer sent a wrong `{op}`: {error}.", op=op) from error


def decode_list(message: Message, payload: bytearray) -> Message:
    """Decode the payload, and return the message with this long list.

    Raises:
        RemoteProtocolError: the payload is not the declared list.
    """
    kind = type(message)
    try:
        items = _list_decoders[kind](payload)
    except _MALFORMED as error:
        op = op_of(message)
        raise RemoteProtocolError(f"The peer sent a wrong `{op}`: {error}.") from error
    return msgspec.structs.replace(message, tensors=items)


def _request_id(header: memoryview) -> int | None:
    """The request id of an unknown operation, for the answer's `re`."""
    try:
        return _read_request(header).id
    except msgspec.ValidationError:
        return None  # the id is not a number, so no answer can repeat it


def _unpack_within_limits(header: memoryview) -> object:
    counted: dict[str, Any] = {}
    if len(header) > _COUNTED_ABOVE:
        count = _Counter().count
        counted = {"list_hook": count, "object_hook": count}
    return _unpack(
        header,
        strict_map_key=True,
        max_array_len=_MAX_LENGTH,
        max_map_len=_MAX_LENGTH,
        max_str_len=len(header),
        max_bin_len=len(header),
        max_ext_len=0,  # no message has an extension type
        ext_hook=_refuse_extension,
        **counted,
    )


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code}")


class _Counter:
    """Counts the values of a large header while `msgpack` builds them; raises at the limit."""

    def __init__(self) -> None:
        self._values = 0

    def count(self, container: Any) -> Any:
        self._values += 1 + len(container)
        if self._values > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values")
        return container
