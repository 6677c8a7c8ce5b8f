"""Load a stage's weights from tensors on disk, or make random ones to measure with.

The files are read piece by piece straight into the matrices that `builder.py` allocates, so that
loading never holds a second copy of the model. Each tensor's SHA-256 is checked over the very bytes
that are read, while they are in the processor's cache.
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

import torch
from torch import Tensor

from potluck.engine.builder import StageWeights, build_weights
from potluck.engine.memory import out_of_memory
from potluck.errors import BrokenModelError, IntegrityError, InvalidLayersError
from potluck.ids import Digest
from potluck.model.config import ModelConfig

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
    dtype: torch.dtype,
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
    _check(stored, needed)

    def fill(targets: list[tuple[str, Tensor]]) -> None:
        jobs = [(stored[name], target) for name, target in targets]
        _Reader(sum(tensor.nbytes for tensor, _ in jobs), progress).run(jobs, threads)

    with out_of_memory("load these layers", device):
        return build_weights(
            config, layers, embedding=embedding, head=head, dtype=dtype, device=device, fill=fill
        )


def random_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
) -> StageWeights:
    """Weights that mean nothing and compute in the same time; made at the speed of memory."""
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(1 << 16, generator=generator).mul_(0.02).to(device, dtype)

    def fill(targets: list[tuple[str, Tensor]]) -> None:
        for _, target in targets:
            flat = target.view(-1)
            whole = len(flat) // len(block) * len(block)
            flat[:whole].view(-1, len(block)).copy_(block)
            flat[whole:].copy_(block[: len(flat) - whole])

    return build_weights(
        config, layers, embedding=embedding, head=head, dtype=dtype, device=device, fill=fill
    )


def _check(stored: Mapping[str, StoredTensor], needed: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in needed.items():
        tensor = stored.get(name)
        if tensor is None:
            raise BrokenModelError(
                f"The model has no tensor {name}, which its config calls for. Its folder is"
                " incomplete: download it again.",
                tensor=name,
            )
        dtype = SOURCE_DTYPES.get(tensor.dtype)
        if dtype is None:
            raise BrokenModelError(
                f"The tensor {name} is stored as {tensor.dtype}; Potluck reads"
                f" {', '.join(SOURCE_DTYPES)}. Take the model in its original form.",
                tensor=name,
                dtype=tensor.dtype,
            )
        if tuple(tensor.shape) != shape or tensor.nbytes != math.prod(shape) * dtype.itemsize:
            raise BrokenModelError(
                f"The tensor {name} has the shape {list(tensor.shape)} and {tensor.nbytes} bytes,"
                f" where the model's config calls for {list(shape)} of {tensor.dtype}. The files"
                " are not those of this config.",
                tensor=name,
            )


class _Reader:
    """Read, check and convert tensors on a few threads; counts what is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._done, self._progress = total, 0, progress
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self, jobs: list[tuple[StoredTensor, Tensor]], threads: int) -> None:
        with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="load") as pool:
            futures = [pool.submit(self._read, *job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stopped.set()  # those at work end at their next piece
                pool.shutdown(cancel_futures=True)
                raise

    @torch.inference_mode()
    def _read(self, tensor: StoredTensor, target: Tensor) -> None:
        flat, filled = target.view(-1), 0
        dtype = SOURCE_DTYPES[tensor.dtype]
        piece = memoryview(bytearray(min(PIECE, tensor.nbytes)))
        digest, left = hashlib.sha256(), tensor.nbytes
        with tensor.path.open("rb", buffering=0) as file:
            file.seek(tensor.offset)
            while left and not self._stopped.is_set():
                view = piece[: min(left, len(piece))]
                if not _read_fully(file, view):
                    break  # the digest of what is there is not the one asked for
                digest.update(view)
                values = torch.frombuffer(view, dtype=dtype)
                flat[filled : filled + len(values)].copy_(values)
                filled, left = filled + len(values), left - len(view)
                self._advance(len(view))
        if not self._stopped.is_set() and digest.hexdigest() != tensor.digest:
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


def _read_fully(file: FileIO, view: memoryview) -> bool:
    """Fill the view; False where the file ends before."""
    filled = 0
    while filled < len(view):
        count = file.readinto(view[filled:])
        if not count:
            return False
        filled += count
    return True
