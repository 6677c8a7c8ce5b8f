"""A table of embeddings that stays on the disk: the rows that a step needs are read from its files.

A token needs a few rows of some hundred bytes, and the table has a hundred gigabytes. So it takes no memory but what the
system has to spare for its files. These are read and not mapped, as in `reading.py`. Digests are those of whole tensors:
what is read here was checked when it arrived, and not again.
"""

import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from potluck.engine.kernels.products.gguf_blocks import block_numbers
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.errors import BrokenModelError, EngineError
from potluck.model.quantized import GGUF, GGUF_BLOCKS
from potluck.reasons import reason

_OPEN = 64  # files that are kept open; a store has a file for each tensor
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS = {GGUF + kind: kind for kind in GGUF_BLOCKS}  # dtypes of blocks of llama.cpp


class Place(Protocol):
    """Where the bytes of a tensor are."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def offset(self) -> int: ...


class Rows(Protocol):
    """What rows a table has."""

    @property
    def head_size(self) -> int: ...
    @property
    def shard_rows(self) -> int: ...


class RowTable:
    """The rows of a table that is stored in several tensors. Not thread-safe."""

    def __init__(self, spec: Rows) -> None:
        self._spec = spec
        self._places: dict[int, Place] = {}
        self._open: OrderedDict[Path, FileIO] = OrderedDict()  # latest used last
        self._stand_in: Tensor | None = None
        weakref.finalize(self, _close, self._open)

    def place(self, shard: int, place: Place) -> None:
        """Read the rows of this tensor there.

        Raises:
            BrokenModelError: it has no plain numbers.
            EngineError: it is not there, or not whole.
        """
        kind = _BLOCKS.get(place.dtype)
        if place.dtype not in _DTYPES and (
            kind is None or self._spec.head_size % GGUF_BLOCKS[kind][0]
        ):
            raise BrokenModelError(
                f"The table {place.name} is stored as {place.dtype}, and its rows can be read as"
                f" {', '.join(_DTYPES)} or in blocks of GGUF that end with a row. Take the model in another form.",
                tensor=place.name,
            )
        self._places[shard] = place
        try:
            size = place.path.stat().st_size
        except OSError as error:
            raise _unreadable(place, reason(error)) from error
        if size < place.offset + place.nbytes:
            raise _unreadable(place, "its file is too short")

    def read_from(self, numbers: Tensor) -> None:
        """Read all rows from these numbers, again and again: a model with random weights has no files."""
        self._stand_in = numbers

    def read(self, rows: Tensor) -> Tensor:
        """Rows by their numbers, (…,) i64 → (…, head_size), f32.

        Raises:
            EngineError: a file cannot be read.
            BrokenModelError: a row has a number that no trained model has.
        """
        wanted, places = torch.unique(rows, return_inverse=True)
        if self._stand_in is not None:
            return torch.stack([self.read_one(int(row)) for row in wanted])[places]
        return self._read(wanted.tolist())[places]

    def read_one(self, row: int) -> Tensor:
        """The same of one row: (head_size,)."""
        if self._stand_in is None:
            return self._read([row])[0]
        size = self._spec.head_size
        start = row * size % (len(self._stand_in) - size)
        return self._stand_in[start : start + size].float()

    def _read(self, wanted: list[int]) -> Tensor:
        """(N, head_size), f32, of ascending rows."""
        found = [self._found(row) for row in wanted]
        self._announce(found)
        parts = [self._row(place, start, nbytes) for place, start, nbytes in found]
        dtypes = [place.dtype for place, _, _ in found]
        if len(set(dtypes)) == 1:
            table = _numbers(bytearray().join(parts), dtypes[0], len(wanted))
        else:
            pairs = zip(parts, dtypes, strict=True)
            table = torch.cat([_numbers(part, dtype, 1) for part, dtype in pairs])
        if not bool(table.isfinite().all()):
            raise BrokenModelError(
                f"A number in the table {found[0][0].name} and what belongs to it is none. The files are"
                " damaged or the model was saved badly. Download it again, or take another version of it.",
                tensor=found[0][0].name,
            )
        return table

    def _found(self, row: int) -> tuple[Place, int, int]:
        """The tensor that has a row, and where in its file, in bytes: the row's first one, and how many."""
        shard, index = divmod(row, self._spec.shard_rows)
        place = self._places[shard]
        nbytes = _row_bytes(place.dtype, self._spec.head_size)
        return place, place.offset + index * nbytes, nbytes

    def _announce(self, found: Iterable[tuple[Place, int, int]]) -> None:
        """Have the system read all rows at once, where it can: one after the other takes a disk's time for each."""
        if hasattr(os, "posix_fadvise"):
            for place, start, nbytes in found:
                os.posix_fadvise(self._file(place).fileno(), start, nbytes, os.POSIX_FADV_WILLNEED)

    def _row(self, place: Place, start: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view, filled = memoryview(data), 0
        try:
            file = self._file(place)
            file.seek(start)
            while filled < nbytes and (count := file.readinto(view[filled:])):
                filled += count
        except OSError as error:
            raise _unreadable(place, reason(error)) from error
        if filled < nbytes:
            raise _unreadable(place, "its file is too short")
        return data

    def _file(self, place: Place) -> FileIO:
        file = self._open.pop(place.path, None)
        if file is None:
            if len(self._open) >= _OPEN:
                self._open.popitem(last=False)[1].close()
            try:
                file = place.path.open("rb", buffering=0)
            except OSError as error:
                raise _unreadable(place, reason(error)) from error
        self._open[place.path] = file
        return file


class TableTarget:
    """A part of a table, as a loader fills it: it notes where the bytes are. See `targets.Target`."""

    step = 1
    format = None
    packed = None

    def __init__(self, table: RowTable, shard: int, rows: int, width: int) -> None:
        self.table, self.shard, self.rows, self.width = table, shard, rows, width

    def fill(self, first: int, values: Tensor) -> None:
        raise AssertionError("a table stays on the disk")

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        raise AssertionError("a table stays on the disk")


def _row_bytes(dtype: str, size: int) -> int:
    """Bytes of a row of so many numbers."""
    if (kind := _BLOCKS.get(dtype)) is None:
        return size * _DTYPES[dtype].itemsize
    inputs, nbytes = GGUF_BLOCKS[kind]
    return size // inputs * nbytes


def _numbers(data: bytearray, dtype: str, rows: int) -> Tensor:
    """(rows, numbers of a row), f32."""
    if (kind := _BLOCKS.get(dtype)) is None:
        return torch.frombuffer(data, dtype=_DTYPES[dtype]).view(rows, -1).float()
    return block_numbers(kind, torch.frombuffer(data, dtype=torch.uint8).view(rows, -1))


def _close(files: OrderedDict[Path, FileIO]) -> None:
    while files:
        files.popitem()[1].close()


def _unreadable(place: Place, why: str) -> EngineError:
    return EngineError(
        f"A table of the model is read from the disk while it answers, and {place.name} in the file"
        f" {place.path.name} cannot be read: {why}. Load the model anew; what is missing is then fetched again.",
        tensor=place.name,
    )
