"""The generated kernels of one path, called with tensors."""

import struct
from ctypes import addressof

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads, attended_part, rows_at_once
from potluck.engine.kernels.attending.attention_fields import (
    KINDS,
    cache_fields,
    check_rows,
    norm_parts,
    shared_fields,
    sinks_field,
)
from potluck.engine.kernels.attending.attention_kernel import Attend, emit_attend, parts_floats
from potluck.engine.kernels.attending.prefill_kernel import (
    Prefill,
    emit_attend_many,
    scratch_floats,
)
from potluck.engine.kernels.attending.rope_kernel import RopeAndCache, emit_rope_and_cache
from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.called.matrix import multiply_many
from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.layout import GROUP, ROWS, TILE, blocks_of, groups_of
from potluck.engine.kernels.mixtures.moe_kernel import Choose, emit_choose_many
from potluck.engine.kernels.paths import (
    ARITHMETIC,
    Path,
    host_architecture,
    host_features,
    usable_paths,
)
from potluck.engine.kernels.products.float_kernel import (
    MOST_TOKENS,
    FloatProduct,
    emit_float_product,
    input_kind,
)
from potluck.engine.kernels.products.largest_kernel import emit_largest
from potluck.engine.kernels.products.packing_kernel import Pack, emit_pack
from potluck.engine.kernels.products.product_kernel import PackedProduct, emit_product
from potluck.engine.kernels.products.quantise_kernel import Quantise, emit_quantise
from potluck.engine.kernels.products.row_kernel import Rows, emit_rows
from potluck.engine.kernels.products.rows import NORMED, Reading
from potluck.engine.kernels.products.tensors import Angles, PackedWeight, QuantisedInput, Router
from potluck.engine.kernels.writing.ir_types import KIND_F32
from potluck.model.families.facts import Activation, NormKind, gate_up_rows, size_of_rows

# How bits of a number are read as a float, after they are shifted so far.
_FLOAT_BITS = {
    torch.float32: ("<f", 0),
    torch.bfloat16: ("<f", 16),
    torch.float16: ("<exx", 0),
}
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
NO_WINDOW = 1 << 40  # tokens
_ROWS_PADDED = 512  # rows of a matrix of odd size that are copied at a time, to be padded


def host_paths() -> list[Path]:
    """Return the paths that this processor can run, best first."""
    return usable_paths(host_architecture(), host_features())


class GeneratedKernels(CompiledKernels, Kernels):
    """All that layers compute with, in kernels compiled for a path."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        super().__init__(path, threads)
        self.name = path.name

    def largest(self, numbers: Tensor) -> float:
        numbers = numbers.contiguous()
        find = self._library.get(emit_largest, numbers.itemsize)
        bits = find(numbers.data_ptr(), numbers.numel())
        form, shift = _FLOAT_BITS[numbers.dtype]
        return struct.unpack(form, (bits << shift).to_bytes(4, "little"))[0]

    def quantise(self, x: Tensor) -> QuantisedInput:
        return self._quantise("plain", x, x.shape[1])

    def quantise_gated(self, gate_up: Tensor, activation: Activation = "silu") -> QuantisedInput:
        size = size_of_rows(activation, gate_up.shape[1])
        assert gate_up_rows(activation, size) == gate_up.shape[1]
        return self._quantise(activation, gate_up, size)

    def multiply_plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b. A token has the bits that it has in a layer's kernel, alone or among others."""
        tokens, (rows, width) = len(x), weight.shape
        assert weight.dtype != torch.int8
        assert weight.stride(1) == 1
        assert x.shape[1] == width, f"{x.shape[1]} inputs, {width} columns"
        addend = None if bias is None else bias.float()
        assert addend is None or addend.shape == (rows,)
        kind = KINDS[weight.dtype]
        wanted = input_kind(self.path, kind, width)
        inputs = x.to(_DTYPES[wanted]).contiguous()
        out = torch.empty((tokens, rows))
        if kind == KIND_F32 and tokens > MOST_TOKENS:
            multiply_many(self, inputs, weight, addend, out)
            return out.to(x.dtype)
        for first in range(0, tokens, MOST_TOKENS):
            together = min(tokens - first, MOST_TOKENS)
            piece = self._library.get(emit_float_product, kind, wanted, together)
            arguments = FloatProduct.structure(
                weights=weight.data_ptr(),
                stride=weight.stride(0) * weight.itemsize,
                inputs=inputs[first:].data_ptr(),
                out=out[first:].data_ptr(),
                addend=0 if addend is None else addend.data_ptr(),
                rows=rows,
                width=width,
            )
            self.run(piece, addressof(arguments), rows)
        return out.to(x.dtype)

    def has_arithmetic(self, dtype: torch.dtype) -> bool:
        needed = {torch.bfloat16: ARITHMETIC["bf16"], torch.float16: ARITHMETIC["f16"]}.get(dtype)
        return needed is None or not needed.isdisjoint(host_features())

    def norm(
        self, x: Tensor, weight: Tensor, epsilon: float, kind: NormKind = "root mean square"
    ) -> Tensor:
        assert weight.dtype == torch.float32
        assert x.shape[1:] == weight.shape[-1:]
        return self._rows(x, x.shape[1], weight, NORMED[kind], epsilon)

    def gate(
        self, gate_up: Tensor, activation: Activation, learned: Tensor | None = None
    ) -> Tensor:
        """What `mlp.gate` computes, on f32."""
        size = size_of_rows(activation, gate_up.shape[1])
        return self._rows(gate_up, size, learned, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """What `head.softcap` computes, on f32."""
        rows = logits.view(-1, logits.shape[-1])
        return self._rows(rows, rows.shape[1], None, "softcapped", cap).view(logits.shape)

    def route(self, x: Tensor, router: Router, ids: Tensor | None = None) -> Tensor:
        """What `mlp.route` computes, on f32."""
        assert x.dtype == router.matrix.dtype == torch.float32
        chosen = None
        if router.id_table is not None:
            assert ids is not None
            chosen = router.id_table[ids.long()]
        scores = self.multiply_plain(x, router.matrix, router.addend)
        factors = torch.empty_like(scores)
        arguments = Choose.structure(
            scores=scores.data_ptr(),
            bias=0 if router.bias is None else router.bias.data_ptr(),
            chosen=0 if chosen is None else chosen.data_ptr(),
            factors=factors.data_ptr(),
        )
        choose = self._library.get(emit_choose_many, router.routing)
        self.run(choose, addressof(arguments), len(x))
        return factors

    def prepare(self, shape: Heads) -> None:
        """Compile `rope_and_cache` and `attend` now, so that the first prompt does not wait half a second."""
        self._library.get(emit_rope_and_cache, shape)
        self.prepare_attention(shape)

    def prepare_attention(self, shape: Heads) -> None:
        """Compile `attend` now."""
        self._library.get(emit_attend_many, attended_part(shape))
        self._library.get(emit_attend, attended_part(shape))

    def rope_and_cache(
        self,
        shape: Heads,
        qkv: Tensor,
        cache: Tensor,
        position: int,
        angles: Angles | None,
        norm: Tensor | None,
        first: int = 0,
    ) -> None:
        """Apply norm and rope to queries and keys in place, then write keys and values to the cache.

        Args:
            shape: of the heads.
            qkv: (T, (H + 2 Hkv)·K), f32: of each token queries, keys, values; or (T, (H + Hkv)·K).
            cache: (2, Hkv, capacity, K), or K + 4 if int8.
            position: of the first token.
            angles: of the tokens, f32; None: no rope.
            norm: f32 weights of the norm, of queries, keys and values; None where the shape has no norm.
            first: the position of the cache's first row.
        """
        tokens = len(qkv)
        check_rows(shape, qkv, cache, position - first)
        assert (norm is None) == (shape.qk_norm is None)
        cosines, sines, factors = (0, 0, 0)
        if angles is not None:
            cosines, sines, factors = angles.addresses(tokens * shape.rotary_dim)
        norms = {"query_norm": 0, "key_norm": 0, "value_norm": 0}
        if norm is not None:
            assert norm.is_contiguous()
            norms = {name: part.data_ptr() for name, part in norm_parts(shape, norm).items()}
        arguments = RopeAndCache.structure(
            qkv=qkv.data_ptr(),
            cosines=cosines,
            sines=sines,
            query_factors=factors,
            position=position,
            **norms,
            **cache_fields(shape, cache, first),
        )
        piece = self._library.get(emit_rope_and_cache, shape)
        self.run(piece, addressof(arguments), tokens)

    def attend(
        self,
        shape: Heads,
        qkv: Tensor,
        cache: Tensor,
        position: int,
        window: int | None,
        first: int = 0,
        shared: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of some tokens, after `rope_and_cache`.

        Args:
            shape: of the heads.
            qkv: as `rope_and_cache` leaves it.
            cache: likewise.
            position: of the first token.
            window: cached tokens that a token sees, itself among them; None: all.
            first: the position of the cache's first row.
            shared: the rows before that one, as a cache; None: they are not needed.
            sinks: (H,), f32, if the shape has some.

        Returns:
            (T, H·K), f32; of a latent, of as many numbers as a value has.
        """
        tokens, path = len(qkv), self.path
        check_rows(shape, qkv, cache, position - first)
        if tokens == 1:
            return self._attend_one(shape, qkv, cache, position, window, first, shared, sinks)
        # A block for each share; its tokens are a multiple of the rows that are computed together.
        wanted, rows = -(-self.shares // shape.kv_heads), rows_at_once(path)
        share = max(rows, -(-tokens // wanted // rows) * rows)
        blocks = shape.kv_heads * -(-tokens // share)
        out = torch.zeros((tokens, shape.heads * shape.value_dim))
        stats = torch.empty((shape.heads, tokens, 2))
        scratch = torch.empty((blocks, scratch_floats(shape, path)))
        arguments = Prefill.structure(
            queries=qkv.data_ptr(),
            tokens=tokens,
            position=position,
            window=NO_WINDOW if window is None else window,
            share=share,
            scratch=scratch.data_ptr(),
            stats=stats.data_ptr(),
            out=out.data_ptr(),
            sinks=sinks_field(shape, sinks),
            **cache_fields(shape, cache, first),
            **shared_fields(shape, shared),
        )
        piece = self._library.get(emit_attend_many, attended_part(shape))
        self.run(piece, addressof(arguments), blocks, 1)
        return out

    def _attend_one(
        self,
        shape: Heads,
        qkv: Tensor,
        cache: Tensor,
        position: int,
        window: int | None,
        first: int,
        shared: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """`attend` of one token, which has the same bits as in a chunk. It copies no keys."""
        out = torch.empty((1, shape.heads * shape.value_dim))
        parts = torch.empty(parts_floats(shape, position + 1))
        arguments = Attend.structure(
            queries=qkv.data_ptr(),
            position=position,
            window=NO_WINDOW if window is None else window,
            parts=parts.data_ptr(),
            out=out.data_ptr(),
            job=self.job,
            shares=self.shares,
            sinks=sinks_field(shape, sinks),
            **cache_fields(shape, cache, first),
            **shared_fields(shape, shared),
        )
        self.wake()
        self._library.get(emit_attend, attended_part(shape))(addressof(arguments))
        return out

    def _rows(
        self, x: Tensor, width: int, weight: Tensor | None, reading: Reading, number: float = 0.0
    ) -> Tensor:
        x = x.contiguous()
        assert x.dtype == torch.float32
        out = torch.empty((len(x), width))
        arguments = Rows.structure(
            source=x.data_ptr(),
            stride=x.shape[1],
            weight=0 if weight is None else weight.data_ptr(),
            out=out.data_ptr(),
            width=width,
        )
        self.run(self._library.get(emit_rows, reading, number), addressof(arguments), len(x))
        return out

    def _quantise(self, reading: Reading, x: Tensor, width: int) -> QuantisedInput:
        if x.stride(1) != 1:
            x = x.contiguous()
        made = QuantisedInput.empty(len(x), width)
        arguments = Quantise.structure(
            source=x.data_ptr(),
            kind=KINDS[x.dtype],
            stride=x.stride(0),
            width=width,
            tokens=len(x),
            records=made.records.data_ptr(),
        )
        blocks = -(-len(x) // TILE)
        self.run(self._library.get(emit_quantise, reading), addressof(arguments), blocks)
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
        pack = self._library.get(emit_pack, packed.format)
        arguments = Pack.structure(
            source=weight.data_ptr(),
            kind=KINDS[weight.dtype],
            stride=weight.stride(0),
            groups=groups_of(packed.width),
            blocks=blocks_of(len(weight)),
            packed=packed.data.data_ptr() + packed.format.nbytes(first, packed.width),
        )
        return bool(pack(addressof(arguments)))

    def _multiply(
        self, packed: PackedWeight, x: QuantisedInput, out: Tensor, addend: Tensor | None
    ) -> None:
        arguments = PackedProduct.structure(
            weights=packed.data.data_ptr(),
            inputs=x.records.data_ptr(),
            out=out.data_ptr(),
            addend=0 if addend is None else addend.data_ptr(),
            stride=0 if addend is None or addend.dim() == 1 else packed.rows,
            groups=groups_of(packed.width),
            rows=packed.rows,
            tokens=x.tokens,
        )
        blocks = blocks_of(packed.rows)
        product = self._library.get(emit_product, packed.format)
        self.run(product, addressof(arguments), blocks)
