"""Build a stage's layers from tensors on disk, or from random numbers to measure with.

The matrices are allocated in the form that is computed with (compute dtype, queries, keys and values
in one, gate and up in one); the files are then read piece by piece straight into their rows, so that
loading never holds a second copy of the model. Each tensor's SHA-256 is checked over the very bytes
that are read, while they are in the processor's cache.
`read` and not `mmap`: a file that another process truncates is an error here, not a dead process.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from potluck.engine.blocks import DecoderLayer, HeadNorm, Linear, RmsNorm
from potluck.engine.memory import out_of_memory
from potluck.engine.products import Products, fastest_products
from potluck.errors import BrokenModelError, IntegrityError, InvalidLayersError
from potluck.ids import Digest
from potluck.model.config import EMBEDDING, FINAL_NORM, LM_HEAD, ModelConfig

PIECE = 1 << 20  # bytes read, hashed and converted at a time: fits the processor's L2 cache

SOURCE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Fill = Callable[[str, Tensor], None]
"""Put the tensor of this name into this memory, at once or by the time that all is filled."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """What a stage computes with, all on one device."""

    config: ModelConfig
    layers: range
    blocks: tuple[DecoderLayer, ...]
    embedding: Tensor | None  # (V, D)
    norm: RmsNorm | None
    lm_head: Linear | None
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        total = sum(block.nbytes for block in self.blocks)
        total += self.norm.nbytes if self.norm else 0
        matrices = [self.embedding, self.lm_head.weight if self.lm_head else None]
        # A tied head is the embedding's own memory.
        distinct = {matrix.data_ptr(): matrix.nbytes for matrix in matrices if matrix is not None}
        return total + sum(distinct.values())


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
    jobs: list[tuple[StoredTensor, Tensor]] = []
    with out_of_memory("load these layers", device):
        weights = build_weights(
            config,
            layers,
            embedding=embedding,
            head=head,
            dtype=dtype,
            device=device,
            fill=lambda name, target: jobs.append((stored[name], target)),
        )
        _Reader(sum(tensor.nbytes for tensor, _ in jobs), progress).run(jobs, threads)
    return weights


def random_weights(
    config: ModelConfig,
    layers: range,
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

    def fill(_: str, target: Tensor) -> None:
        flat = target.view(-1)
        whole = len(flat) // len(block) * len(block)
        flat[:whole].view(-1, len(block)).copy_(block)
        flat[whole:].copy_(block[: len(flat) - whole])

    return build_weights(
        config, layers, embedding=embedding, head=head, dtype=dtype, device=device, fill=fill
    )


@torch.inference_mode()
def build_weights(
    config: ModelConfig,
    layers: range,
    *,
    embedding: bool,
    head: bool,
    dtype: torch.dtype,
    device: torch.device,
    fill: Fill,
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, in the order in which files hold them."""
    shapes = config.stage_tensors(layers, embedding=False, head=head)
    nbytes = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    builder = _Builder(config, dtype, device, fill, fastest_products(dtype, device, nbytes))
    shared = builder.matrix(EMBEDDING) if embedding else None
    blocks = tuple(builder.layer(layer) for layer in layers)
    norm = lm_head = None
    if head:
        norm = builder.norm(FINAL_NORM)
        lm_head = builder.lm_head(shared)
    return StageWeights(
        config=config,
        layers=layers,
        blocks=blocks,
        embedding=shared,
        norm=norm,
        lm_head=lm_head,
        dtype=dtype,
        device=device,
    )


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Fill,
        products: Products,
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._fill, self._products = fill, products

    def layer(self, index: int) -> DecoderLayer:
        config, prefix = self._config, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        projections = tuple(f"{attention}{part}_proj" for part in "qkv")
        halves = (f"{mlp}gate_proj", f"{mlp}up_proj")
        return DecoderLayer(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_windows[index],
            input_norm=self.norm(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(index, projections, bias=config.qkv_bias),
            qk_norm=self._head_norm(attention) if config.qk_norm else None,
            output=self._linear(index, (f"{attention}o_proj",), bias=config.output_bias),
            post_norm=self.norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(index, halves, bias=config.mlp_bias),
            down=self._linear(index, (f"{mlp}down_proj",), bias=config.mlp_bias),
        )

    def matrix(self, name: str) -> Tensor:
        target = self._empty(self._config.vocab_size, self._config.hidden_size)
        self._fill(name, target)
        return target

    def lm_head(self, embedding: Tensor | None) -> Linear:
        """The head's matrix; a tied one is the embedding, where the stage has that too."""
        tied = self._config.tie_word_embeddings
        if not tied or embedding is None:
            embedding = self.matrix(EMBEDDING if tied else LM_HEAD)
        return Linear(embedding, None, self._products)

    def norm(self, name: str) -> RmsNorm:
        target = torch.empty(self._config.hidden_size, device=self._device)
        self._fill(name, target)
        return RmsNorm(target, self._config.rms_norm_eps)

    def _head_norm(self, attention: str) -> HeadNorm:
        config = self._config
        both = torch.empty((2, config.head_dim), device=self._device)
        self._fill(f"{attention}q_norm.weight", both[0])
        self._fill(f"{attention}k_norm.weight", both[1])
        return HeadNorm(both, (config.num_heads, config.num_kv_heads), config.rms_norm_eps)

    def _linear(self, layer: int, parts: tuple[str, ...], *, bias: bool) -> Linear:
        """One matrix whose rows are those of the parts, one after the other."""
        shapes = self._config.layer_tensors(layer)
        rows = [shapes[f"{part}.weight"][0] for part in parts]
        weight = self._empty(sum(rows), shapes[f"{parts[0]}.weight"][1])
        for part, target in zip(parts, weight.split(rows), strict=True):
            self._fill(f"{part}.weight", target)
        if not bias:
            return Linear(weight, None, self._products)
        offsets = self._empty(sum(rows))
        for part, target in zip(parts, offsets.split(rows), strict=True):
            self._fill(f"{part}.bias", target)
        return Linear(weight, offsets, self._products)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


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
