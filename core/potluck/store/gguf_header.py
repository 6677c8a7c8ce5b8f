"""Reads the header of a GGUF file, which may be hostile.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Every length and count is checked against the file's size and against the sizes of real models
before anything of that size is allocated. The reader of the `gguf` package checks none of them, and
keeps a numpy array for each string (8.9 s and 0.7 GB for the vocabulary of Llama 3; 0.6 s and 60 MB
here). It also maps the file, so the process dies if the file is truncated. Potluck uses the
package's constants and quantisation types.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from potluck.errors import BrokenModelError, format_bytes
from potluck.model.checkpoint.git_pointer import refuse_git_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 had other lengths, and was replaced after a week
MAX_HEADER = 256 << 20  # bytes; Gemma 3, with 262,208 tokens, has about 12 MB
MAX_FIELDS = 4096  # models have about forty
MAX_TENSORS = 1 << 17
MAX_KEY = 1024  # bytes; the format allows 65,535
MAX_NAME = 256  # bytes; the format allows 64
MAX_STRING = 16 << 20  # bytes; chat templates have up to 50 kB
MAX_ENTRIES = 1 << 22  # in all lists: tokens, scores, types and merges are up to 900,000 (Llama 4)
MAX_ALIGNMENT = 1 << 20  # bytes; files use 32
_ALIGNMENT = 32  # if the file does not say
_BUFFER = 1 << 20

Scalar = str | int | float | bool
Value = Scalar | list[str] | list[int] | list[float] | list[bool]

_STRING, _ARRAY = 8, 9
_BOOL = 7
# Maps the format's number types to their letters in `struct`.
_NUMBERS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor as the header describes it."""

    name: str
    kind: str  # as named by the `gguf` package: Q4_K, F16
    shape: tuple[int, ...]  # rows first: reversed from the order in the file
    offset: int  # of its first byte, from the start of the file
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The content of a GGUF file before its tensor data."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(
    path: Path, *, max_header: int = MAX_HEADER, max_entries: int = MAX_ENTRIES
) -> GgufHeader:
    """Read a file's header, and check it.

    Args:
        path: the file.
        max_header: bytes of the header.
        max_entries: entries of all lists together.

    Raises:
        BrokenModelError: this is not a GGUF header, it is truncated, or its values are impossible.
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=_BUFFER) as file:
        cursor = _Cursor(file, path, max_header, max_entries)
        if (magic := cursor.take(4)) != MAGIC:
            refuse_git_pointer(path, magic + file.read(4))
            raise cursor.broken("it does not begin as a GGUF file does")
        version = cursor.number("I")
        if version not in VERSIONS:
            hint = ", of a computer with another byte order" if version >= 1 << 16 else ""
            raise cursor.broken(f"it is of version {version}{hint}; Potluck reads 2 and 3")
        tensors = cursor.count("Q", MAX_TENSORS, "tensors")
        fields = cursor.count("Q", MAX_FIELDS, "fields")
        metadata: dict[str, Value] = {}
        for _ in range(fields):
            key = cursor.text(MAX_KEY)
            if key in metadata:
                raise cursor.broken(f"it has the field {key[:80]} twice")
            metadata[key] = cursor.value(cursor.number("I"))
        announced = [_read_tensor(cursor) for _ in range(tensors)]
    return GgufHeader(metadata=metadata, tensors=_place(announced, metadata, cursor))


class _Cursor:
    """Reads a file from start to end, and refuses impossible values."""

    def __init__(self, file: BinaryIO, path: Path, max_header: int, max_entries: int) -> None:
        self._file, self.size, self.file_name = file, path.stat().st_size, path.name
        self.position = 0
        self._max_header, self._entries_left = max_header, max_entries

    def take(self, nbytes: int) -> bytes:
        if nbytes > self.size - self.position:
            raise BrokenModelError(
                f"{self.file_name} is cut off: {format_bytes(self.position + nbytes)} expected,"
                f" {format_bytes(self.size)} found. The download is not complete; start it again.",
                file=self.file_name,
            )
        self.position += nbytes
        if self.position > self._max_header:
            raise self.broken(f"its header has more than {format_bytes(self._max_header)}")
        data = self._file.read(nbytes)
        if len(data) != nbytes:
            raise self.broken("it became shorter while it was read")
        return data

    def number(self, letter: str) -> int:
        """Read one little-endian integer."""
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def count(self, letter: str, most: int, what: str) -> int:
        count = self.number(letter)
        if count > most:
            raise self.broken(f"it claims {count:,} {what}; {most:,} are allowed")
        return count

    def text(self, most: int) -> str:
        # A token of a byte-level vocabulary may be only a part of a character.
        return self.take(self.count("Q", most, "bytes of a text")).decode("utf-8", "replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.text(MAX_STRING)
        if kind != _ARRAY:
            letter = self._letter(kind)
            return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]
        kind = self.number("I")
        # Each number becomes a Python object: 16 MB of small numbers in a file would take 300 MB.
        count = self.count("Q", self._entries_left, "more entries of lists")
        self._entries_left -= count
        if kind == _STRING:
            return [self.text(MAX_STRING) for _ in range(count)]
        letter = self._letter(kind)
        data = self.take(count * struct.calcsize("<" + letter))
        return np.frombuffer(data, np.dtype("<" + letter)).tolist()

    def broken(self, what: str) -> BrokenModelError:
        return BrokenModelError(
            f"{self.file_name} cannot be read: {what}. Download the file again.",
            file=self.file_name,
        )

    def _letter(self, kind: int) -> str:
        if kind not in _NUMBERS:  # no model has lists of lists
            raise self.broken(f"it has a value of the unknown kind {kind}")
        return _NUMBERS[kind]


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """Read a tensor; its offset counts from the start of the data."""
    name = cursor.text(MAX_NAME)
    dimensions = cursor.count("I", 4, "dimensions of a tensor")
    shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
    kind, offset = cursor.number("I"), cursor.number("Q")
    try:
        form = GGMLQuantizationType(kind)
        inputs, block = GGML_QUANT_SIZES[form]
    except (ValueError, KeyError) as error:
        raise cursor.broken(f"tensor {name[:80]} is of the unknown type {kind}") from error
    elements = math.prod(shape)
    if elements >= 1 << 50 or (shape and shape[-1] % inputs):
        raise cursor.broken(f"tensor {name[:80]} cannot have the shape {list(shape)}")
    nbytes = elements // inputs * block
    return GgufTensor(name=name, kind=form.name, shape=shape, offset=offset, nbytes=nbytes)


def _place(
    announced: list[GgufTensor], metadata: Mapping[str, Value], cursor: _Cursor
) -> dict[str, GgufTensor]:
    """Make offsets count from the start of the file; check alignment, bounds and overlaps."""
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT:
        raise cursor.broken("its general.alignment is none")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    end = 0
    for tensor in sorted(announced, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.name in tensors:
            raise cursor.broken(f"it has the tensor {tensor.name[:80]} twice")
        if tensor.offset % alignment or tensor.offset < end:
            raise cursor.broken(f"tensor {tensor.name[:80]} begins inside another, or unaligned")
        end = tensor.offset + tensor.nbytes
        if start + end > cursor.size:
            raise BrokenModelError(
                f"{cursor.file_name} is cut off: tensor {tensor.name[:80]} ends at"
                f" {format_bytes(start + end)}, the file at {format_bytes(cursor.size)}."
                " The download is not complete; start it again.",
                file=cursor.file_name,
            )
        tensors[tensor.name] = replace(tensor, offset=start + tensor.offset)
    return tensors
