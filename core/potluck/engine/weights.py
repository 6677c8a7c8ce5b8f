"""Load a stage's weights from tensors on disk, or make random ones to measure with.

The files are read piece by piece straight into the matrices that `builder.py` allocates, converted or
packed on the way, so that loading never holds a second copy of the model. What is packed already is
read into its place. Each tensor's SHA-256 is checked over the very bytes that are read, while they are
in the processor's cache.
`read` and not `mmap`: a file that another process truncates is an error here, not a dead process.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import cast

import torch

from potluck.engine.builder import StageWeights, build_weights
from potluck.engine.kernels.layout import ROWS
from potluck.engine.memory import out_of_memory
from potluck.engine.targets import Target
from potluck.errors import BrokenModelError, IntegrityError, InvalidLayersError
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.schemes import PACKED_DTYPES, Scheme, packed_bytes, tensor_bits

PIECE = 1 << 20  # bytes read, hashed and converted at a time: fits the processor's L2 cache

SOURCE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all, from any thread, one call at a time; may raise to stop loading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor's bytes stand on disk, and what they must be."""

    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    digest: Digest
    path: Path
    offset: int
    nbytes: int


def load_weights(
    config: ModelConfig,
    layers: range,
    *,
    embedding: bool,
    head: bool,
    tensors: Iterable[StoredTensor],
    scheme: Scheme,
    device: torch.device,
    progress: Progress | None = None,
    threads: int = 2,
) -> StageWeights:
    """Load a stage's weights; tensors of other stages may be among those given.

    Raises:
        InvalidLayersError: the model has no such layers.
        BrokenModelError: a tensor is missing, or has a dtype or shape that the config does not.
        IntegrityError: a file's bytes do not have their digest; `data["digest"]` is that digest.
        OutOfMemoryError: the device has no room for these layers.
        OSError: a file cannot be read.
    """
    if not 0 <= layers.start <= layers.stop <= config.num_layers:
        raise InvalidLayersError(
            f"The model has {config.num_layers} layers, and {layers.start} to {layers.stop} were"
            " asked for.",
        )
    stored = {tensor.name: tensor for tensor in tensors}
    needed = config.stage_tensors(layers, embedding=embedding, head=head)
    _check(config, stored, needed, scheme)

    total = sum(stored[name].nbytes for name in needed)
    with out_of_memory("load these layers", device), _Reader(total, progress, threads) as reader:
        return build_weights(
            config,
            layers,
            embedding=embedding,
            head=head,
            scheme=scheme,
            device=device,
            fill=lambda targets: reader.run((stored[name], target) for name, target in targets),
        )


def random_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    scheme: Scheme,
    device: torch.device,
    seed: int = 0,
) -> StageWeights:
    """Weights that mean nothing and compute in the same time; made at the speed of memory."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(PIECE, generator=generator).mul_(0.02).bfloat16()

    def fill(targets: list[tuple[str, Target]]) -> None:
        for _, target in targets:
            rows = min(_rows_at_once(target, 1), -(-target.rows // ROWS) * ROWS)
            piece = numbers.repeat(-(-rows * target.width // PIECE))[: rows * target.width]
            piece = piece.view(rows, target.width)
            for first in range(0, target.rows, rows):
                target.fill(first, piece[: target.rows - first])

    return build_weights(
        config, layers, embedding=embedding, head=head, scheme=scheme, device=device, fill=fill
    )


def _check(
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    needed: Mapping[str, tuple[int, ...]],
    scheme: Scheme,
) -> None:
    for name, shape in needed.items():
        tensor = stored.get(name)
        if tensor is None:
            raise BrokenModelError(
                f"The model has no tensor {name}, which its config calls for. Its folder is"
                " incomplete: download it again.",
                tensor=name,
            )
        nbytes = _stored_bytes(config, tensor, shape, scheme)
        if nbytes is None:
            raise BrokenModelError(
                f"The tensor {name} is stored as {tensor.dtype}; Potluck reads"
                f" {', '.join(SOURCE_DTYPES)}. Take the model in its original form.",
                tensor=name,
                dtype=tensor.dtype,
            )
        if tuple(tensor.shape) != shape or tensor.nbytes != nbytes:
            raise BrokenModelError(
                f"The tensor {name} has the shape {list(tensor.shape)} and {tensor.nbytes} bytes,"
                f" where the model's config calls for {list(shape)} of {tensor.dtype}. The files"
                " are not those of this config.",
                tensor=name,
            )


def _stored_bytes(
    config: ModelConfig, tensor: StoredTensor, shape: tuple[int, ...], scheme: Scheme
) -> int | None:
    """How many bytes such a tensor has; None: it is not one that this scheme can be made of."""
    if (dtype := SOURCE_DTYPES.get(tensor.dtype)) is not None:
        return math.prod(shape) * dtype.itemsize
    bits = tensor_bits(config, tensor.name, shape, scheme)
    if bits is None or PACKED_DTYPES.get(tensor.dtype) != bits:
        return None
    return packed_bytes(shape[0], math.prod(shape[1:]), bits)


class _Reader:
    """Read, check and convert tensors on a few threads; counts what is done."""

    def __init__(self, total: int, progress: Progress | None, threads: int) -> None:
        self._total, self._done, self._progress = total, 0, progress
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(max(threads, 1), thread_name_prefix="load")

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()  # after an error, those at work end at their next piece
        self._pool.shutdown(cancel_futures=True)

    def run(self, jobs: Iterable[tuple[StoredTensor, Target]]) -> None:
        for future in [self._pool.submit(self._read, *job) for job in jobs]:
            future.result()

    @torch.inference_mode()
    def _read(self, tensor: StoredTensor, target: Target) -> None:
        digest = hashlib.sha256()
        with tensor.path.open("rb", buffering=0) as file:
            file.seek(tensor.offset)
            if tensor.dtype in PACKED_DTYPES:
                self._read_packed(file, tensor, target, digest)
            else:
                self._read_numbers(file, tensor, target, digest)
        if not self._stopped.is_set() and digest.hexdigest() != tensor.digest:
            raise IntegrityError(
                f"The stored bytes of {tensor.name} are not what they were announced as: the file"
                f" {tensor.path.name} is damaged. They have to be fetched again.",
                digest=tensor.digest,
                tensor=tensor.name,
            )

    def _read_numbers(
        self, file: FileIO, tensor: StoredTensor, target: Target, digest: "hashlib._Hash"
    ) -> None:
        dtype = SOURCE_DTYPES[tensor.dtype]
        rows = _rows_at_once(target, dtype.itemsize)
        row_bytes = target.width * dtype.itemsize
        piece = memoryview(bytearray(min(rows, target.rows) * row_bytes))
        for first in range(0, target.rows, rows):
            view = piece[: min(rows, target.rows - first) * row_bytes]
            if self._stopped.is_set() or not _read_fully(file, view):
                return  # the digest of what is there is not the one asked for
            digest.update(view)
            target.fill(first, torch.frombuffer(view, dtype=dtype).view(-1, target.width))
            self._advance(len(view))

    def _read_packed(
        self, file: FileIO, tensor: StoredTensor, target: Target, digest: "hashlib._Hash"
    ) -> None:
        packed = target.packed
        assert packed is not None
        whole = memoryview(cast("bytearray", packed.data.numpy()))
        for start in range(0, len(whole), PIECE):
            view = whole[start : start + PIECE]
            if self._stopped.is_set() or not _read_fully(file, view):
                return
            digest.update(view)
            self._advance(len(view))

    def _advance(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def _rows_at_once(target: Target, itemsize: int) -> int:
    """Whole blocks of rows, of about a piece."""
    rows = PIECE // max(1, target.width * itemsize)
    return max(ROWS, rows // ROWS * ROWS)


def _read_fully(file: FileIO, view: memoryview) -> bool:
    """Fill the view; False where the file ends before."""
    filled = 0
    while filled < len(view):
        count = file.readinto(view[filled:])
        if not count:
            return False
        filled += count
    return True
