"""Quantise a tensor of a model into a file, before it is sent, to the same bytes as a stage would.

The reader and the kernels are those of loading. A piece is read, packed, digested and written while it is
in the processor's cache, so that a matrix of any size takes a few megabytes of memory, and those of its
stored parts that have to be held whole (`reading.py`).
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
from potluck.engine.kernels.layout import ROWS
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.reading import Allowance, Reader, StoredTensor
from potluck.engine.loading.targets import PackedTarget, Target
from potluck.errors import DiskFullError
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.formats import PackedFormat
from potluck.reasons import reason


@dataclass(frozen=True, slots=True)
class QuantisedFile:
    """The file that was written."""

    digest: Digest
    nbytes: int


def quantise(
    config: ModelConfig,
    shape: tuple[int, int],
    weight_format: PackedFormat,
    parts: Sequence[StoredTensor],
    path: Path,
    kernels: Kernels,
    held: Allowance | None = None,
) -> QuantisedFile:
    """Write the packed bytes of a matrix (rows, width) to a file that is not there yet.

    Args:
        config: of the model.
        shape: of the matrix.
        weight_format: that the bytes are packed in.
        parts: the tensors that it is stored in, as `find_stored` checked them.
        path: of the file. It is not flushed to the disk, and is removed after a failure.
        kernels: what packs; all make the same bytes.
        held: the bytes of parts that all who quantise at once may hold together; None: this one runs alone.

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
            target = _FileTarget(shape, weight_format, file, kernels)
            reader.fill(parts, target)
            return target.finished()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _FileTarget:
    """Packs rows as they come, and appends them to a file."""

    packed = None
    step = ROWS

    def __init__(
        self,
        shape: tuple[int, int],
        weight_format: PackedFormat,
        file: FileIO,
        kernels: Kernels,
    ) -> None:
        self.rows, self.width = shape
        self.format, self._file, self._kernels = weight_format, file, kernels
        self._sha = hashlib.sha256()
        self._done = self._nbytes = 0  # rows, bytes of the file

    def fill(self, first: int, values: Tensor) -> None:
        self._append(first, len(values), lambda target: target.fill(0, values))

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        self._append(first, len(rows), lambda target: target.fill_integers(0, rows))

    def _append(self, first: int, rows: int, fill: Callable[[Target], None]) -> None:
        assert first == self._done, "rows come in their order"
        packed = PackedWeight.empty(rows, self.width, self.format)
        fill(PackedTarget(packed, 0, rows, self._kernels))
        left = memoryview(cast("bytearray", packed.data.numpy()))
        self._sha.update(left)
        self._done, self._nbytes = first + rows, self._nbytes + len(left)
        with _writing():
            while left:
                left = left[self._file.write(left) :]

    def finished(self) -> QuantisedFile:
        """Describe the file. Call it when all rows are written."""
        assert self._done == self.rows
        return QuantisedFile(Digest(self._sha.hexdigest()), self._nbytes)


@contextmanager
def _writing() -> Iterator[None]:
    """Raise `DiskFullError` if the file cannot be written; errors of reading stay as they are."""
    try:
        yield
    except OSError as error:
        raise DiskFullError(
            f"Quantised weights cannot be written: {reason(error)}. Free some space on the disk."
        ) from error
