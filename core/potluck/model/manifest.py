"""The manifest of a model: its config and its tensors, each with the digest of its bytes.

A manifest has exactly the tensors that the config names, as they are stored (`quantized.py`). Other
tensors in the files (the `inv_freq` of rope, an `lm_head` beside tied embeddings) are computed or
unused: they are not part of the model, and are never sent.

This module also parses the header of a safetensors file
(https://github.com/huggingface/safetensors#format), with limits, because downloaded files are
untrusted.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.errors import BrokenModelError, format_bytes
from potluck.ids import Digest, ModelId
from potluck.model.quantized import Shape, weight_name

LENGTH_SIZE = 8  # bytes; a file begins with its header's length, little-endian
MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
MAX_NAME = 256  # characters; a message on the wire allows no more
MAX_RANK = 8  # dimensions; decoders have tensors of one to three

# Bits of one element, since some dtypes of safetensors are smaller than a byte.
DTYPE_BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip

# These fields of config.json say where a model came from, who saved it, or how it was trained and
# stored. They do not change what is computed: two folders that differ only in these hold the same
# model. The path in `_name_or_path` is private. The dtype is not needed: each tensor has its own.
NOT_COMPUTED = frozenset(
    {
        "_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype",
        "auto_map", "use_cache", "initializer_range", "attention_dropout", "unsloth_version",
    }
)  # fmt: skip

_Members = dict[Annotated[str, Meta(max_length=MAX_NAME)], msgspec.Raw]


class _RawTensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 50)], ...], Meta(max_length=MAX_RANK)]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A tensor as it is stored."""

    name: str
    dtype: str  # as safetensors names it
    shape: Shape
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan(TensorFacts):
    """A tensor as a file's header describes it."""

    file: str  # the file's name, for messages
    offset: int  # of the tensor's first byte in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry(TensorFacts):
    """A tensor of the manifest; the digest is that of its bytes in the file."""

    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole model, identified by its content. `make_manifest` makes it."""

    model_id: ModelId
    config: Mapping[str, object]  # canonical: without the fields of NOT_COMPUTED
    tensors: tuple[TensorEntry, ...]  # sorted by name

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.tensors)

    def stage(self, names: Iterable[str]) -> tuple[TensorEntry, ...]:
        """The entries in which these tensors of the model are stored, in the order of the names.

        The model must have all of these names.
        """
        stored: dict[str, list[TensorEntry]] = {}
        for entry in self.tensors:
            stored.setdefault(weight_name(entry.name), []).append(entry)
        return tuple(entry for name in names for entry in stored[name])


def make_manifest(config: Mapping[str, object], tensors: Iterable[TensorEntry]) -> Manifest:
    """Make a model's manifest and compute its id. The order of the tensors does not matter."""
    canonical = {key: config[key] for key in sorted(config) if key not in NOT_COMPUTED}
    ordered = tuple(sorted(tensors, key=lambda entry: entry.name))
    sha = hashlib.sha256(_canonical_json(canonical))
    for entry in ordered:
        # One JSON array in each line, so that different lists of tensors never give the same bytes.
        line = [entry.name, entry.dtype, list(entry.shape), entry.digest]
        sha.update(b"\n" + _canonical_json(line))
    return Manifest(model_id=ModelId(sha.hexdigest()), config=canonical, tensors=ordered)


def header_length(prefix: bytes, file_size: int, file: str) -> int:
    """The size in bytes of a safetensors header, from the first `LENGTH_SIZE` bytes of the file."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) < LENGTH_SIZE or length > file_size - LENGTH_SIZE:
        raise _truncated(file, LENGTH_SIZE + length, file_size)
    if length > MAX_HEADER:
        raise BrokenModelError(
            f"{file} is not a safetensors file: its header claims {format_bytes(length)},"
            f" {format_bytes(MAX_HEADER)} are allowed.",
            file=file,
        )
    return length


def parse_header(header: bytes, file_size: int, file: str) -> dict[str, TensorSpan]:
    """The tensors of a safetensors file, from the header that follows its length.

    The tensors must cover the data without a hole or an overlap, as the format demands. So a header
    that lists a tensor twice, moves it or cuts it off is refused.

    Raises:
        BrokenModelError: the message names the file, the tensor, and the expected and found values.
    """
    start = LENGTH_SIZE + len(header)
    try:
        members = msgspec.json.decode(header, type=_Members)
        members.pop("__metadata__", None)  # free text by the program that saved the file
        raw = {name: msgspec.json.decode(value, type=_RawTensor) for name, value in members.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenModelError(
            f"{file} has a damaged header. Download the model again.", file=file
        ) from error
    spans = {name: _span(name, tensor, start, file) for name, tensor in raw.items()}
    position = start
    for span in sorted(spans.values(), key=lambda span: (span.offset, span.nbytes)):
        if span.offset != position:
            raise BrokenModelError(
                f"{file} is broken: tensor {span.name} begins at byte {span.offset}, expected"
                f" {position}. Download the file again.",
                file=file,
                tensor=span.name,
            )
        position += span.nbytes
    if position > file_size:
        raise _truncated(file, position, file_size)
    if position < file_size:
        raise BrokenModelError(
            f"{file} is broken: its header describes {position} bytes, the file has {file_size}."
            " Download the file again.",
            file=file,
        )
    return spans


def _span(name: str, tensor: _RawTensor, start: int, file: str) -> TensorSpan:
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        raise BrokenModelError(
            f"Tensor {name} in {file} is of an unknown dtype: {tensor.dtype[:32]}.",
            file=file,
            tensor=name,
        )
    first, last = tensor.data_offsets
    needed, odd_bits = divmod(prod(tensor.shape) * bits, 8)
    if odd_bits or last - first != needed:
        raise BrokenModelError(
            f"Tensor {name} in {file} has {last - first} bytes; {tensor.dtype}"
            f" {list(tensor.shape)} takes {needed}. The file is broken; download it again.",
            file=file,
            tensor=name,
        )
    return TensorSpan(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        file=file,
        offset=start + first,
        nbytes=needed,
    )


def _truncated(file: str, expected: int, found: int) -> BrokenModelError:
    return BrokenModelError(
        f"{file} is cut off: {format_bytes(expected)} expected, {format_bytes(found)} found."
        " The download is not complete; start it again.",
        file=file,
        expected=expected,
        found=found,
    )


def _canonical_json(value: object) -> bytes:
    """The only encoding of a value: sorted keys, no whitespace, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # JSON can write a lone surrogate, as \ud800, but UTF-8 cannot.
    return text.encode("utf-8", "backslashreplace")
