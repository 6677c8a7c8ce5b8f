"""The generated kernels of one path, called with tensors."""

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.attention_kernel import Heads
from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.cache import cached_width
from potluck.engine.kernels.float_kernel import MOST_TOKENS, input_kind
from potluck.engine.kernels.head_kernel import HeadShape
from potluck.engine.kernels.ir_types import KIND_BF16, KIND_F16, KIND_F32, KIND_INT8
from potluck.engine.kernels.layer_kernel import LayerShape
from potluck.engine.kernels.layout import GROUP, ROWS, blocks_of, groups_of
from potluck.engine.kernels.library import Kernel, Library, address_of, library
from potluck.engine.kernels.paths import Path, host_architecture, host_features, usable_paths
from potluck.engine.kernels.pool import Pool
from potluck.engine.kernels.prefill_kernel import PREFILL_FIELDS, scratch_floats
from potluck.engine.kernels.tensors import PackedWeight, QuantisedInput
from potluck.model.config import Activation
from potluck.model.formats import PackedFormat

KINDS = {
    torch.float32: KIND_F32,
    torch.bfloat16: KIND_BF16,
    torch.float16: KIND_F16,
    torch.int8: KIND_INT8,  # of caches alone
}
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
_ROWS_PADDED = 512  # of a matrix of odd size, copied at a time
_SHARES = 4  # of a product for each thread: the last to finish is late by a quarter at most


def host_paths() -> list[Path]:
    """What this processor can run, best first."""
    return usable_paths(host_architecture(), host_features())


class GeneratedKernels(Kernels):
    """Kernels compiled for a path. Of several threads, products are what they share."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.name = path.name
        self._library: Library = library(path.name)
        self._pool = Pool(self._library, threads) if threads > 1 else None

    def read(self, memory: Tensor) -> int:
        """Read these bytes and do nothing with them: what a product could take at best."""
        return self._library["read"](memory.data_ptr(), memory.nbytes)

    def decode_kernel(self, shape: LayerShape) -> Kernel:
        """See `Decoder`, which checks what this does not."""
        return self._library.decode(shape)

    def head_kernel(self, shape: HeadShape) -> Kernel:
        """See `ends.Head`, which checks what this does not."""
        return self._library.head(shape)

    def lookup_kernel(self, weight_format: PackedFormat) -> Kernel:
        """See `ends.EmbeddingLookup`, which checks what this does not."""
        return self._library[f"lookup_{weight_format.name}"]

    @property
    def job(self) -> int:
        """Where the pool's job stands, for kernels that share out their work; 0: there is no pool."""
        return 0 if self._pool is None else self._pool.job

    def wake(self) -> None:
        """Have the pool's threads ready, before such a kernel is called."""
        if self._pool is not None:
            self._pool.wake()

    @property
    def shares(self) -> int:
        """Into how many parts to cut what the pool's threads share."""
        return 1 if self._pool is None else self._pool.threads * _SHARES

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.close()

    def quantise(self, x: Tensor) -> QuantisedInput:
        return self._quantise("quantise", x, x.shape[1])

    def quantise_normed(self, x: Tensor, weight: Tensor, epsilon: float) -> QuantisedInput:
        assert weight.dtype == torch.float32
        assert weight.is_contiguous()
        assert weight.shape == x.shape[1:]
        return self._quantise("norm_quantise", x, x.shape[1], weight.data_ptr(), epsilon)

    def quantise_gated(self, gate_up: Tensor, activation: Activation = "silu") -> QuantisedInput:
        assert gate_up.shape[1] % 2 == 0
        return self._quantise(f"{activation}_quantise", gate_up, gate_up.shape[1] // 2)

    def multiply_plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        tokens, (rows, width) = len(x), weight.shape
        assert weight.dtype in (torch.bfloat16, torch.float16), weight.dtype
        assert weight.stride(1) == 1
        assert x.shape[1] == width, f"{x.shape[1]} inputs, {width} columns"
        addend = None if bias is None else bias.float()
        assert addend is None or addend.shape == (rows,)
        kind = KINDS[weight.dtype]
        wanted = KIND_F32
        if x.dtype == weight.dtype:  # else 16 bits would round the input
            wanted = input_kind(self._library.path, kind, width)
        inputs = x.to(_DTYPES[wanted]).contiguous()
        out = torch.empty((tokens, rows))
        stride, item = weight.stride(0) * weight.itemsize, inputs.itemsize
        read, written = inputs.data_ptr(), out.data_ptr()
        added = 0 if addend is None else addend.data_ptr()
        step = max(1, rows // self.shares)
        for first in range(0, tokens, MOST_TOKENS):
            piece = self._library.float_product(kind, wanted, min(tokens - first, MOST_TOKENS))
            places = (read + item * first * width, written + 4 * first * rows, added)
            arguments = (weight.data_ptr(), stride, *places, rows, width)  # `FLOAT_FIELDS`
            self._share(piece, arguments, rows, step)
        return out.to(x.dtype)

    def prepare(self, shape: Heads) -> None:
        """Compile `rotate` and `attend` now, half a second that the first prompt does not wait."""
        self._library.rotate(shape)
        self._library.attend_many(shape)

    def rotate(
        self,
        shape: Heads,
        qkv: Tensor,
        cache: Tensor,
        position: int,
        angles: tuple[Tensor, Tensor] | None,
        norm: Tensor | None,
    ) -> None:
        """Norm and turn the queries and keys of some tokens in place; cache keys and values.

        Args:
            shape: of the heads.
            qkv: (T, (H + 2 Hkv)·K), f32: of each token queries, keys, values.
            cache: (2, Hkv, capacity, K), or K + 4 if int8.
            position: of the first token.
            angles: cosines and signed sines, `rotary_dim` for each token, f32, as `rotary.rotate`
                takes them; None: nothing turns.
            norm: f32 weights of the norm, those of queries first; None where the shape has no norm.
        """
        tokens = len(qkv)
        _check(shape, qkv, cache, position)
        assert (norm is None) == (shape.qk_norm is None)
        for part in angles or ():
            assert part.dtype == torch.float32
            assert part.is_contiguous()
            assert part.numel() == tokens * shape.rotary_dim
        start = [part[:, :, position:].data_ptr() for part in cache.split(1)]
        cosines, sines = (0, 0) if angles is None else (part.data_ptr() for part in angles)
        query_norm = key_norm = 0
        if norm is not None:
            normed = shape.heads if shape.qk_norm == "projection" else 1
            assert norm.is_contiguous()
            query_norm = norm.data_ptr()
            key_norm = query_norm + 4 * normed * shape.head_dim
        places = (qkv.data_ptr(), tokens, cosines, sines, query_norm, key_norm, *start)
        self._library.rotate(shape)(*places, cache.shape[2] * shape.cached_bytes)

    def attend(
        self, shape: Heads, qkv: Tensor, cache: Tensor, position: int, window: int | None
    ) -> Tensor:
        """Attention of some tokens, turned and cached already.

        Args:
            shape: of the heads.
            qkv: as `rotate` leaves it.
            cache: likewise.
            position: of the first token.
            window: cached tokens that a query looks at, itself among them; None: all.

        Returns:
            (T, H·K), f32.
        """
        tokens, capacity = len(qkv), cache.shape[2]
        _check(shape, qkv, cache, position)
        out = torch.zeros((tokens, shape.heads * shape.head_dim))
        stats = torch.empty((shape.heads, tokens, 2))
        scratch = torch.empty((shape.kv_heads, scratch_floats(shape, self._library.path)))
        given = {
            "queries": qkv.data_ptr(),
            "tokens": tokens,
            "position": position,
            "window": capacity if window is None else window,
            "keys": cache.data_ptr(),
            "values": cache.data_ptr() + cache.nbytes // 2,
            "head_stride": capacity * shape.cached_bytes,
            "scratch": scratch.data_ptr(),
            "stats": stats.data_ptr(),
            "out": out.data_ptr(),
        }
        arguments = [given[field] for field in PREFILL_FIELDS]
        self._share(self._library.attend_many(shape), arguments, shape.kv_heads, 1)
        return out

    def _share(self, piece: Kernel, arguments: Sequence[int], blocks: int, step: int) -> None:
        """Call a piece for all blocks: alone, or so many at a time together with the pool."""
        # Small: the job has them in memory for as long as the call lasts.
        memory = (ctypes.c_int64 * len(arguments))(*arguments)
        if self._pool is None:
            piece(ctypes.addressof(memory), 0, blocks)
        else:
            self._pool.run(address_of(piece), ctypes.addressof(memory), blocks, step)

    def _quantise(self, kernel: str, x: Tensor, width: int, *more: float) -> QuantisedInput:
        if x.stride(1) != 1:
            x = x.contiguous()
        tokens, stride, kind = len(x), x.stride(0), KINDS[x.dtype]
        made = QuantisedInput.empty(tokens, width)
        records = made.records.data_ptr()
        self._library[kernel](x.data_ptr(), kind, stride, width, tokens, records, *more)
        return made

    def _pack(self, packed: PackedWeight, first: int, weight: Tensor) -> bool:
        if packed.width % GROUP == 0 and weight.stride(1) == 1:
            whole = len(weight) // ROWS * ROWS
            is_finite = self._pack_blocks(packed, first, weight[:whole])
            first, weight = first + whole, weight[whole:]
        else:
            is_finite = True
        padding = (0, groups_of(packed.width) * GROUP - packed.width)
        for rows in weight.split(_ROWS_PADDED) if len(weight) else ():
            padded = F.pad(rows, (*padding, 0, -len(rows) % ROWS))
            is_finite &= self._pack_blocks(packed, first, padded)
            first += _ROWS_PADDED
        return is_finite

    def _pack_blocks(self, packed: PackedWeight, first: int, weight: Tensor) -> bool:
        groups = groups_of(packed.width)
        pack = self._library[f"pack_{packed.format.name}"]
        target = packed.data.data_ptr() + packed.format.nbytes(first, packed.width)
        kind, stride, blocks = KINDS[weight.dtype], weight.stride(0), blocks_of(len(weight))
        return bool(pack(weight.data_ptr(), kind, stride, groups, blocks, target))

    def _multiply(
        self, packed: PackedWeight, x: QuantisedInput, out: Tensor, addend: Tensor | None
    ) -> None:
        arguments = (
            packed.data.data_ptr(),
            x.records.data_ptr(),
            out.data_ptr(),
            0 if addend is None else addend.data_ptr(),
            groups_of(packed.width),
            packed.rows,
            x.tokens,
            0 if addend is None or addend.dim() == 1 else packed.rows,
        )
        blocks = blocks_of(packed.rows)
        if self._pool is None:
            self._library[f"product_{packed.format.name}"](*arguments, 0, blocks)
            return
        step = max(1, blocks // self.shares)
        self._share(self._library[f"piece_{packed.format.name}"], arguments, blocks, step)


def _check(shape: Heads, qkv: Tensor, cache: Tensor, position: int) -> None:
    """What the kernels of attention take for granted."""
    assert qkv.dtype == torch.float32
    assert qkv.is_contiguous()
    assert qkv.shape[1] == (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    assert KINDS[cache.dtype] == shape.cache_kind
    assert cache.is_contiguous()
    assert cache.shape[:2] == (2, shape.kv_heads)
    assert cache.shape[3] == cached_width(shape.head_dim, cache.dtype)
    assert position + len(qkv) <= cache.shape[2]
