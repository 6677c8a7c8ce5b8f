"""The file of one session's cache, as bytes.

It is in the form of safetensors: the length of a JSON header, the header, then the rows of each layer. The header
names the stage that computed them, and the tokens: one digest for each `PREFIX_TOKENS` tokens from the beginning on,
so that no token id is on the disk. A digest covers everything.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.state_cache import StateCache
from potluck.files import O_BINARY, replace
from potluck.model.caches import Held

PIECE = 4 << 20  # bytes that are copied at once: that takes about a millisecond
_MAX_HEADER = 4 << 20  # bytes
_CHECKSUM_BYTES = 32


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself."""

    stage: str
    tokens: str
    prefix: str  # the digests of the tokens, in hex
    held: str  # what each layer holds, as JSON; see `CacheSpec`
    stretch: str = "0"  # with which rotary frequencies; see `SessionCache`
    checksum: str = "0" * (2 * _CHECKSUM_BYTES)


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one layer."""

    dtype: str
    shape: tuple[int, int, int, int]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a file before the rows."""

    metadata: Metadata
    layers: dict[str, Rows]  # by number

    def put(self, file: BinaryIO) -> None:
        """Write it."""
        header = msgspec.json.encode({"__metadata__": self.metadata, **self.layers})
        file.write(len(header).to_bytes(8, "little") + header)

    def checksum(self) -> "hashlib.blake2b":
        """The digest of what the rows belong to. Rows are added to it."""
        data = self.metadata
        fields = (data.stage, data.tokens, data.prefix, data.held, data.stretch)
        return hashlib.blake2b("\n".join(fields).encode(), digest_size=_CHECKSUM_BYTES)


def read_header(file: BinaryIO) -> Header:
    """Read the header. The file is then at its first row.

    Raises:
        ValueError: it is not a header of these files.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER:
        raise ValueError("it has no header")
    raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=Metadata)
    layers = {name: msgspec.json.decode(rows, type=Rows) for name, rows in raw.items()}
    return Header(metadata=metadata, layers=layers)


def header_of(cache: SessionCache, stage: str) -> Header:
    """The header of a file for this cache. The digest is still missing."""
    layers: dict[str, Rows] = {}
    offset = 0
    for index, layer in enumerate(cache.parts):
        rows = _rows(layer, cache.length)
        nbytes = sum(part.nbytes for part in rows)
        shape = _shape(layer, sum(part.shape[2] for part in rows))
        layers[str(index)] = Rows(dtype="U8", shape=shape, data_offsets=(offset, offset + nbytes))
        offset += nbytes
    held = [(0,) if layer.shared is not None else layer.held for layer in cache.parts]
    metadata = Metadata(
        stage=stage,
        tokens=str(cache.length),
        prefix=cache.prefix.hex(),
        held=msgspec.json.encode(held).decode(),
        stretch=str(cache.stretch),
    )
    return Header(metadata=metadata, layers=layers)


def pieces_of(cache: SessionCache) -> Iterator[list[bytes]]:
    """Copies of the rows in their order, about `PIECE` bytes at a time. The cache may not change meanwhile."""
    piece: list[bytes] = []
    for layer in cache.parts:
        for span in _spans(_rows(layer, cache.length)):
            piece.append(bytes(span))
            if sum(map(len, piece)) >= PIECE:
                yield piece
                piece = []
    yield piece


def spans_for(cache: SessionCache, header: Header) -> list[tuple[Held, list[memoryview]]]:
    """The memory of an empty cache, with room for the tokens of a file, that the rows of each layer are read into.

    Raises:
        ValueError: the file is of other layers.
    """
    held = msgspec.json.decode(header.metadata.held, type=list[Held])
    if not len(held) == len(header.layers) == len(cache.parts):
        raise ValueError("it is of another stage")
    targets: list[tuple[Held, list[memoryview]]] = []
    for index, (layer, positions) in enumerate(zip(cache.parts, held, strict=True)):
        rows = layer.rows if isinstance(layer, StateCache) else _tokens(header) - positions[0]
        if len(positions) != len(layer.held) or not 0 <= rows <= layer.rows:
            raise ValueError("it holds other tokens than it says")
        if header.layers[str(index)].shape != _shape(layer, rows):
            raise ValueError("it is of other layers")
        targets.append((positions, list(_spans([layer.both[:, :, :rows]]))))
    return targets


def _tokens(header: Header) -> int:
    return int(header.metadata.tokens)


class NewFile:
    """A file that is being written. It is not there before it is finished."""

    def __init__(self, path: Path, header: Header) -> None:
        """Make it. Raise OSError if that is not possible."""
        self._path, self._header, self._checksum = path, header, header.checksum()
        # A name that begins with a dot is a file that is not whole yet.
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY
        self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
        try:
            header.put(self._file)
        except BaseException:
            self.discard()
            raise

    def write(self, piece: list[bytes]) -> None:
        """Add rows."""
        for data in piece:
            self._checksum.update(data)
            self._file.write(data)

    def finish(self) -> None:
        """Add the digest, and give it its name."""
        whole = msgspec.structs.replace(self._header.metadata, checksum=self._checksum.hexdigest())
        self._file.seek(0)
        msgspec.structs.replace(self._header, metadata=whole).put(self._file)
        self._file.close()
        replace(self._temporary, self._path)

    def discard(self) -> None:
        """Delete it, if it is not finished."""
        with suppress(OSError):
            self._file.close()  # which may write
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def read_rows(path: Path, header: Header, spans: list[memoryview]) -> None:
    """Read the rows of a file.

    Raises:
        ValueError: it is not what was written, or is another file than the header was read from.
        OSError: it cannot be read.
    """
    checksum = header.checksum()
    with path.open("rb") as file:
        if read_header(file).metadata != header.metadata:
            raise ValueError("it has changed")
        for span in spans:
            if file.readinto(span) != len(span):
                raise ValueError("the file is too short")
            checksum.update(span)
    if not secrets.compare_digest(checksum.hexdigest(), header.metadata.checksum):
        raise ValueError("its content does not match its digest")


# --- bytes


def _rows(layer: LayerCache, length: int) -> list[Tensor]:
    """What a layer holds of so many tokens: the rows that it shares with others, and its own."""
    if isinstance(layer, StateCache):
        return [layer.both]
    own = layer.both[:, :, : length - layer.first]
    return [own] if layer.shared is None else [layer.shared, own]


def _spans(rows: list[Tensor]) -> Iterator[memoryview]:
    """The bytes of rows in the order of a file: those of each head together, in spans of `PIECE` at most."""
    two, heads = rows[0].shape[:2]
    for kind in range(two):
        for head in range(heads):
            for part in rows:
                data = part[kind, head].view(torch.uint8).view(-1).numpy().data
                for begin in range(0, len(data), PIECE):
                    yield data[begin : begin + PIECE]


def _shape(layer: LayerCache, rows: int) -> tuple[int, int, int, int]:
    """The shape in bytes."""
    two, heads, _, numbers = layer.both.shape
    return two, heads, rows, numbers * layer.both.itemsize
