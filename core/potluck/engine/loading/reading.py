"""Read stored tensors into the memory that a stage computes with.

Files are read piece by piece straight into their targets, and converted or packed on the way. Packed bytes
are read to where they stay; quantised tensors go through `dequantise.py`. Where a matrix is stored in several
tensors, its scales are held while its rows are read. Matrices of GPTQ and AWQ, whose words lie across the
rows, are held whole, as many at a time as `HELD` allows. Each tensor's SHA-256 is computed over the very
bytes that are used, while they are in the processor's cache.

Files are read and not mapped: if another process truncates a file, `read` gives an error, and `mmap` a dead
process.
"""

import hashlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, FileIO
from math import prod
from pathlib import Path
from typing import cast

import torch

from potluck.engine.kernels import best_kernels
from potluck.engine.layers.row_table import TableTarget
from potluck.engine.loading.dequantise import (
    PART_DTYPES,
    PartRows,
    StoredRows,
    fill_from_parts,
    pieces,
    rows_part,
)
from potluck.engine.loading.slices import SlicedTarget
from potluck.engine.loading.targets import CheckedTarget, PairedTarget, ScaledTarget, Target
from potluck.errors import BrokenModelError, IntegrityError
from potluck.files import open_to_read, read_places
from potluck.model.byte_runs import ByteRuns, places
from potluck.model.config import ModelConfig
from potluck.model.formats import BLOCK_ROWS, PACKED_DTYPES
from potluck.model.manifest import TensorEntry
from potluck.model.quantized import TRANSPOSED, WEIGHT, Quantization, way_of, weight_name
from potluck.model.row_order import PairedRows

PIECE = 1 << 20  # bytes read, hashed and converted at a time, which the processor's L2 cache holds
HELD = 160 << 20  # bytes of parts at once: the largest matrix of a GPTQ model of 70B takes 131 MB
_COPIES = 3  # of zero points and scales: as stored, transposed, and widened to f32

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, from any thread, one call at a time. It may raise to stop loading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor(TensorEntry):
    """Where the bytes of a tensor are on disk, and their digest."""

    path: Path
    offset: int
    is_slice: bool = (
        False  # what a rank has of the tensor (`stored_slices.py`); shape and bytes are the slice's
    )
    runs: ByteRuns | None = (
        None  # its bytes among those of the file from `offset` on; None: all that follow
    )


class Reader:
    """Reads, checks and converts tensors on a few threads, and reports how much is done."""

    def __init__(
        self,
        config: ModelConfig,
        total: int,
        progress: Progress | None,
        threads: int,
        held: "Allowance | None" = None,
    ) -> None:
        """Read tensors of `total` bytes; `held` may be shared with other readers, None makes one."""
        self._config = config
        self._total, self._done, self._progress = total, 0, progress
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._held = held or Allowance(HELD)
        self._kernels = best_kernels()
        self._pool = ThreadPoolExecutor(max(threads, 1), thread_name_prefix="load")

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()  # after an error, threads stop at their next piece
        self._pool.shutdown(cancel_futures=True)

    def begin(self, jobs: Iterable[tuple[Sequence[StoredTensor], Target]]) -> Callable[[], None]:
        """Begin to fill the targets, several at a time, the largest first; call the result to wait for all."""
        ordered = sorted(jobs, key=lambda job: -sum(part.nbytes for part in job[0]))
        futures = [self._pool.submit(self.fill, *job) for job in ordered]

        def wait() -> None:
            try:
                while futures:
                    futures.pop(0).result()
            finally:
                # The traceback of an error refers to this frame, which would keep all targets alive.
                futures.clear()

        return wait

    @torch.inference_mode()
    def fill(self, parts: Sequence[StoredTensor], target: Target) -> None:
        """Fill one target from the tensors that it is stored in, in the order of its rows.

        Raises:
            IntegrityError: the bytes do not have their digest, or the file is gone.
            BrokenModelError: the bytes are not weights.
            OSError: a file cannot be read.
        """
        tensor = parts[0]
        if isinstance(target, TableTarget):
            target.table.place(target.shard, tensor)
            self._advance(tensor.nbytes)
            return
        if tensor.dtype not in PACKED_DTYPES and (pairs := self._pairs(tensor)) is not None:
            target = PairedTarget(target, pairs)
        if tensor.dtype not in PACKED_DTYPES and (runs := self._scales(tensor)):
            target = ScaledTarget(target, runs)
        checked = CheckedTarget(target, tensor.name, self._kernels)
        if len(parts) > 1:
            self._read_parts(parts, checked)
        elif tensor.name.endswith(TRANSPOSED):
            self._read_columns(tensor, checked)
        elif isinstance(target, SlicedTarget) and tensor.dtype in PACKED_DTYPES:
            self._read_blocks(tensor, target)
        elif tensor.dtype in PACKED_DTYPES:  # checked when they were packed
            assert target.packed is not None
            self._read_whole(tensor, memoryview(cast("bytearray", target.packed.data.numpy())))
        else:
            self._read_rows(tensor, checked, StoredRows(tensor.dtype, target.width))

    def _pairs(self, part: StoredTensor) -> PairedRows | None:
        return self._config.paired_rows(weight_name(part.name))

    def _scales(self, part: StoredTensor) -> Sequence[tuple[int, float]]:
        return self._config.row_scales(weight_name(part.name))

    def _read_rows(self, tensor: StoredTensor, target: Target, form: StoredRows | PartRows) -> None:
        rows = max(1, PIECE // max(1, form.nbytes) // target.step) * target.step
        piece = memoryview(bytearray(min(rows, target.rows) * form.nbytes))
        starts = range(0, target.rows, rows)
        views = (piece[: min(rows, target.rows - first) * form.nbytes] for first in starts)
        broken: BrokenModelError | None = None
        for index, view in enumerate(self._filled(tensor, views)):
            if broken is None:
                try:
                    form.fill(target, starts[index], view)
                except BrokenModelError as error:
                    # raised at the end, unless the digest says that the file is damaged
                    broken = error
        if broken is not None:
            raise broken

    def _read_blocks(self, tensor: StoredTensor, target: SlicedTarget) -> None:
        """Fill a slice of a matrix from packed bytes, some rows of blocks at a time."""
        row = PACKED_DTYPES[tensor.dtype].nbytes(1, target.width)
        some = max(1, PIECE // row)
        memory = torch.empty(some * row, dtype=torch.uint8)
        piece = memoryview(cast("bytearray", memory.numpy()))
        views = (piece[: tensor.nbytes - at] for at in range(0, tensor.nbytes, len(piece)))
        for index, view in enumerate(self._filled(tensor, views)):
            target.fill_packed(index * some * BLOCK_ROWS, memory[: len(view)])

    def _read_parts(self, parts: Sequence[StoredTensor], target: Target) -> None:
        """Fill a target from a matrix that is stored in several tensors."""
        by_name = {part.name.rpartition(".")[2]: part for part in parts}
        way = self._way_of(parts, target)
        rows = by_name.pop(rows_part(way, by_name) or "", None)
        sizes = [part.nbytes for part in by_name.values()]
        largest = 0 if rows is not None else max(sizes)
        with self._held.take(largest + _COPIES * (sum(sizes) - largest)):
            read = {name: self._read_part(part) for name, part in by_name.items()}
            if self._stopped.is_set():
                return
            if rows is None:
                fill_from_parts(target, way, read)
                return
            form = PartRows(
                way,
                read,
                dtype=PART_DTYPES[rows.dtype],
                stored_width=prod(rows.shape) // max(1, target.rows),
                width=target.width,
            )
            self._read_rows(rows, target, form)

    def _read_columns(self, tensor: StoredTensor, target: Target) -> None:
        """Fill a target from a matrix that is stored as (in, out)."""
        with self._held.take(tensor.nbytes):
            columns = self._read_part(tensor)
            if self._stopped.is_set():
                return
            for first, last in pieces(target.rows, target):
                target.fill(first, columns[:, first:last].t().contiguous())

    def _way_of(self, parts: Sequence[StoredTensor], target: Target) -> Quantization:
        """How a matrix is stored in these parts, which `find_stored` found."""
        stored = self._config.quantization
        assert stored is not None
        by_suffix = {
            part.name.removeprefix(weight_name(part.name).removesuffix(WEIGHT)): part
            for part in parts
        }

        def find(suffix: str) -> tuple[str, tuple[int, ...]] | None:
            part = by_suffix.get(suffix)
            return None if part is None else (part.dtype, tuple(part.shape))

        return way_of(stored, (target.rows, target.width), find) or stored

    def _read_part(self, part: StoredTensor) -> torch.Tensor:
        data = bytearray(part.nbytes)
        self._read_whole(part, memoryview(data))
        return torch.frombuffer(data, dtype=PART_DTYPES[part.dtype]).view(part.shape)

    def _read_whole(self, tensor: StoredTensor, memory: memoryview) -> None:
        views = (memory[start : start + PIECE] for start in range(0, len(memory), PIECE))
        for _ in self._filled(tensor, views):
            pass

    def _filled(self, tensor: StoredTensor, views: Iterable[memoryview]) -> Iterator[memoryview]:
        """Read the tensor into one view after the other, then check its digest."""
        digest = hashlib.sha256()
        done = 0
        with _open(tensor) as file:
            for view in views:
                if self._stopped.is_set():
                    return
                here = places(tensor.offset, tensor.runs, done, len(view))
                if read_places(file, here, view) < len(view):
                    break  # the file is too short: its digest differs
                done += len(view)
                digest.update(view)
                yield view
                self._advance(len(view))
        if digest.hexdigest() != tensor.digest:
            raise IntegrityError(
                f"The stored bytes of {tensor.name} are not what they were announced as: the file"
                f" {tensor.path.name} is damaged. They have to be fetched again.",
                digest=tensor.digest,
                tensor=tensor.name,
            )

    def _advance(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


class Allowance:
    """Bytes that all threads may hold together; a thread that asks for more than are left waits for others."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes, self._taken = nbytes, 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, nbytes: int) -> Generator[None]:
        """Take bytes until the context ends. A request for more than all bytes is served alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self.has(nbytes))
            self._taken += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._taken -= nbytes
                self._changed.notify_all()

    def has(self, nbytes: int) -> bool:
        """Whether so many bytes are left."""
        return self._taken + nbytes <= self._nbytes


def _open(tensor: StoredTensor) -> FileIO | BufferedReader:
    try:
        return open_to_read(tensor.path, in_pieces=tensor.runs is not None)
    except FileNotFoundError:
        raise IntegrityError(
            f"The file {tensor.path.name} with {tensor.name} was deleted. It has to be fetched"
            " again.",
            digest=tensor.digest,
            tensor=tensor.name,
        ) from None
