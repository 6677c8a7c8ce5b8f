"""Read a SentencePiece model, `tokenizer.model`: the vocabulary, and how text is prepared for it.

The file is a protocol buffer, `ModelProto` of
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. Only the fields that change
tokens are read, by a reader of the wire format (https://protobuf.dev/programming-guides/encoding/) with bounds,
because the file is a stranger's.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from potluck.errors import BrokenModelError

MAX_PIECES = 1 << 21  # published vocabularies have up to 262,208

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces; llama.cpp numbers them so too."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK, _UNK, _BOS, _EOS = 3, 24, 35, 40, 41, 42  # of TrainerSpec
_CHARSMAP, _PREFIX, _EXTRA_SPACES, _ESCAPE = 2, 3, 4, 5  # of NormalizerSpec
_KINDS: Mapping[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A token: its text with `▁` for spaces, and how likely it is to be chosen."""

    text: str = ""
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieces:
    """A model.

    Attributes:
        kind: how text is cut into pieces.
        pieces: by their ids.
        has_bytes: what is in no piece is written byte by byte.
        unknown, first, last: ids of the pieces for what is in no piece, and around texts; negative: there is none.
        charsmap: characters and what replaces them, compiled; empty: none are replaced.
        has_prefix: texts begin with a space.
        drops_spaces: spaces around texts, and all but one within them, are dropped.
    """

    kind: Literal["unigram", "bpe"]
    pieces: list[Piece] = field(repr=False)
    has_bytes: bool
    unknown: int
    first: int
    last: int
    charsmap: bytes = field(repr=False)
    has_prefix: bool
    drops_spaces: bool


def read_sentencepiece(data: bytes, name: str) -> SentencePieces:
    """Read a model's file.

    Args:
        data: of the file.
        name: of the file, for messages.

    Raises:
        BrokenModelError: it is no such file, or cuts text in a way that no language model does.
    """
    try:
        pieces, trainer, normalizer = _read(memoryview(data))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise BrokenModelError(
            f"The model's {name} is neither a SentencePiece nor a tiktoken vocabulary, or it is cut off."
            " Download this file again.",
            file=name,
        ) from error
    kind = _KINDS.get(_id(trainer.get(_MODEL_TYPE, 1)))
    if kind is None or trainer.get(_SUFFIX, 0) or not normalizer.get(_ESCAPE, 1):
        raise BrokenModelError(
            f"The model's {name} is a SentencePiece model that cuts text by words or characters, or writes"
            " spaces behind words, which Potluck cannot do. Take the model with a tokenizer.json.",
            file=name,
        )
    charsmap = normalizer.get(_CHARSMAP, b"")
    return SentencePieces(
        kind=kind,
        pieces=pieces,
        has_bytes=bool(trainer.get(_BYTE_FALLBACK, 0)),
        unknown=_id(trainer.get(_UNK, 0)),
        first=_id(trainer.get(_BOS, 1)),
        last=_id(trainer.get(_EOS, 2)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        has_prefix=bool(normalizer.get(_PREFIX, 1)),
        drops_spaces=bool(normalizer.get(_EXTRA_SPACES, 1)),
    )


_Fields = dict[int, int | bytes]


def _read(data: memoryview) -> tuple[list[Piece], _Fields, _Fields]:
    """The pieces, and the fields of the two specifications that may be needed."""
    pieces: list[Piece] = []
    specs: dict[int, _Fields] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _fields(data):
        if number == _PIECES and isinstance(value, memoryview):
            if len(pieces) == MAX_PIECES:
                raise ValueError
            pieces.append(_piece(value))
        elif number in specs and isinstance(value, memoryview):
            specs[number] |= {
                n: bytes(v) if isinstance(v, memoryview) else v for n, v in _fields(value)
            }
    if not pieces:
        raise ValueError
    return pieces, specs[_TRAINER], specs[_NORMALIZER]


def _piece(data: memoryview) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            text = bytes(value).decode("utf-8", "replace")
        elif number == 2 and isinstance(value, int):
            (score,) = struct.unpack("<f", struct.pack("<I", value))
        elif number == 3 and isinstance(value, int):
            kind = value
    return Piece(text, score, kind)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value
        elif wire == _BYTES:
            length, place = _varint(data, place)
            if length > len(data) - place:
                raise IndexError
            yield number, data[place : place + length]
            place += length
        elif wire in (_FIXED32, _FIXED64):
            form = "<I" if wire == _FIXED32 else "<Q"
            (value,) = struct.unpack_from(form, data, place)
            yield number, value
            place += struct.calcsize(form)
        else:
            raise ValueError


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError


def _id(value: int | bytes) -> int:
    """A piece's id; negative ones are written as large numbers."""
    return value if isinstance(value, int) and value < 1 << 31 else -1
