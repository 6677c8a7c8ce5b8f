"""Quantise a tensor of a model into a file, before it is sent: what a stage would make of it, byte for byte.

The reader, the kernels and the pieces are those of loading, so it needs to know of no format. A piece is
read, packed, digested and written while it is in the processor's cache: whatever the size of a matrix,
it takes a few megabytes; a part of it that has to be held whole (`reading.py`) takes its own.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import cast

from torch import Tensor

from potluck.engine.kernels import Kernels, PackedWeight
from potluck.engine.kernels.layout import has_offsets
from potluck.engine.reading import Allowance, Reader, StoredTensor
from potluck.engine.targets import PackedTarget, Target
from potluck.errors import DiskFullError
from potluck.ids import Digest
from potluck.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class QuantisedFile:
    """What was written."""

    digest: Digest
    nbytes: int


def quantise(
    config: ModelConfig,
    shape: tuple[int, int],
    bits: int,
    parts: Sequence[StoredTensor],
    path: Path,
    kernels: Kernels,
    held: Allowance | None = None,
) -> QuantisedFile:
    """Write the packed bytes of a matrix (rows, width) to a file that is not there yet.

    Args:
        config: of the model.
        shape: of the matrix.
        bits: 4, 5 (which are 4 with offsets) or 8.
        parts: the tensors that it is stored in, as `find_stored` checked them.
        path: of the file; nothing is left of it after a failure. It is not flushed.
        kernels: what packs; the bytes are the same of all.
        held: what all that run at once may hold of parts; None: this one runs alone.

    Raises:
        IntegrityError: a part does not have its digest; `data["digest"]`.
        BrokenModelError: a weight is not finite.
        DiskFullError: the file cannot be written.
        OSError: a part cannot be read.
    """
    with _writing():
        file = path.open("xb", buffering=0)
    try:
        total = sum(part.nbytes for part in parts)
        with file, Reader(config, total, None, 1, held) as reader:
            target = _FileTarget(shape, bits, file, kernels)
            reader.fill(parts, target)
            return target.finished()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _FileTarget:
    """Rows that are packed as they come, and appended to a file."""

    packed = None

    def __init__(self, shape: tuple[int, int], bits: int, file: FileIO, kernels: Kernels) -> None:
        self.rows, self.width = shape
        self._bits, self._file, self._kernels = bits, file, kernels
        self._sha = hashlib.sha256()
        self._done = self._nbytes = 0  # rows, bytes of the file

    def fill(self, first: int, values: Tensor) -> None:
        self._append(first, len(values), lambda target: target.fill(0, values))

    def fill_integers(
        self, first: int, integers: Tensor, scales: Tensor, offsets: Tensor | None = None
    ) -> None:
        rows = len(integers)
        self._append(first, rows, lambda target: target.fill_integers(0, integers, scales, offsets))

    @property
    def has_offsets(self) -> bool:
        return has_offsets(self._bits)

    def _append(self, first: int, rows: int, fill: Callable[[Target], None]) -> None:
        assert first == self._done, "rows come in their order"
        packed = PackedWeight.empty(rows, self.width, self._bits)
        fill(PackedTarget(packed, 0, rows, self._kernels))
        left = memoryview(cast("bytearray", packed.data.numpy()))
        self._sha.update(left)
        self._done, self._nbytes = first + rows, self._nbytes + len(left)
        with _writing():
            while left:
                left = left[self._file.write(left) :]

    def finished(self) -> QuantisedFile:
        """What is in the file now, which is all."""
        assert self._done == self.rows
        return QuantisedFile(Digest(self._sha.hexdigest()), self._nbytes)


@contextmanager
def _writing() -> Iterator[None]:
    """Tell a file that cannot be written from one that cannot be read."""
    try:
        yield
    except OSError as error:
        raise DiskFullError(
            f"Quantised weights cannot be written: {error}. Free some space on the disk."
        ) from error
