"""Weights and quantised inputs of the kernels, and what their bytes mean, in torch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from potluck.engine.kernels.layout import (
    GROUP,
    QUAD,
    RECORD_BYTES,
    RECORD_VALUES,
    ROWS,
    VECTOR,
    blocks_of,
    groups_of,
    input_bytes,
    tiles_of,
)
from potluck.engine.pages import HUGE_PAGE, Slab, has_huge_pages, map_pages
from potluck.model.formats import (
    BF16,
    F16,
    F32,
    STEP_BYTES,
    SUPER_BLOCKS,
    PackedFormat,
    WeightFormat,
)
from potluck.model.routing import Routing

DTYPES: Mapping[WeightFormat, torch.dtype] = {
    F32: torch.float32,
    F16: torch.float16,
    BF16: torch.bfloat16,
}
F32_EXPONENT = 23  # the lowest bit of an f32's exponent
_FORMATS = {dtype: plain for plain, dtype in DTYPES.items()}
_TOGETHER = 1 << 28  # bytes that are mapped at a time; pages that nobody writes to take no memory


@dataclass(frozen=True, slots=True)
class Router:
    """What chooses experts."""

    matrix: Tensor  # (routing.rows, D), f32
    bias: Tensor | None  # (routing.count,), f32
    routing: Routing
    addend: Tensor | None = None  # (routing.rows,), f32, of the products
    # (routing.count,), f32: what the factors of chosen experts are multiplied by where these are added
    scales: Tensor | None = None
    id_table: Tensor | None = None  # (ids, routing.per_token), i32: the experts of each token's id


@dataclass(slots=True)
class DeltaTensors:
    """What a gated delta net has beside its two large matrices, in f32."""

    rates: Tensor  # (2 H, D): what β and decays are computed of
    convolution: Tensor  # (inputs, channels)
    decays: Tensor  # (H,), below zero: what a decay's logarithm is per step
    offsets: Tensor  # (H,), of the steps
    norm: Tensor  # (V,)

    @property
    def nbytes(self) -> int:
        parts = (self.rates, self.convolution, self.decays, self.offsets, self.norm)
        return sum(part.nbytes for part in parts)


@dataclass(slots=True)
class MambaTensors:
    """What a state space has beside its two large matrices, in f32."""

    convolution: Tensor  # (inputs, channels)
    bias: Tensor  # (channels,), of the convolution
    decays: Tensor  # (H,), below zero: what a decay's logarithm is per step
    offsets: Tensor  # (H,), of the steps
    skips: Tensor  # (H,), what of x is added to the result
    norm: Tensor | None = None  # (H·P,)

    @property
    def nbytes(self) -> int:
        parts = (self.convolution, self.bias, self.decays, self.offsets, self.skips, self.norm)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass(slots=True)
class ConvolutionTensors:
    """What a short convolution has beside its two matrices, in f32."""

    convolution: Tensor  # (inputs, D)
    bias: Tensor | None = None  # (D,)

    @property
    def nbytes(self) -> int:
        return self.convolution.nbytes + (0 if self.bias is None else self.bias.nbytes)


class MixTensors(NamedTuple):
    """What a block's shares of balanced residual streams are made of, in f32."""

    matrix: Tensor  # (rows, S·D)
    base: Tensor  # (rows,)
    scale: Tensor  # a number for each kind of rows


@dataclass(frozen=True, slots=True)
class UnpackedRows:
    """Unpacked rows of a matrix, of which value = scale x (integer - zero point) - offset."""

    integers: Tensor  # (n, G, 32) uint8; codes, where the format has them
    scales: Tensor  # (n, G), f16, or f32 where the format has exponents or steps
    offsets: Tensor | None  # (n, G), as scales; None: the format has none
    format: PackedFormat

    def dequantise(self) -> Tensor:
        """Return the values, (n, G·32), f32."""
        signed = signed_integers(self.format, self.integers).float()
        values = signed * self.scales.float()[..., None]
        if self.offsets is not None:
            values -= self.offsets.float()[..., None]
        return values.flatten(1)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix (rows, width) in a packed format."""

    data: Tensor  # uint8, `format.nbytes(rows, width)` of them
    rows: int
    width: int
    format: PackedFormat

    def __post_init__(self) -> None:
        assert self.data.dtype == torch.uint8
        assert self.data.is_contiguous()
        assert self.data.numel() == self.format.nbytes(self.rows, self.width)

    @classmethod
    def empty(
        cls, rows: int, width: int, weight_format: PackedFormat, arena: "Arena | None" = None
    ) -> "PackedWeight":
        """Return such a matrix in new memory, which `Kernels.pack_rows` fills."""
        nbytes = weight_format.nbytes(rows, width)
        data = map_pages(nbytes) if arena is None else arena.allocate(nbytes)
        return cls(data, rows, width, weight_format)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def blocks(self) -> Tensor:
        """The bytes of the blocks, (blocks of rows, groups of inputs, bytes of a block)."""
        return self._block_rows[:, self.format.step_bytes(self.width) :].unflatten(
            1, (groups_of(self.width), self.format.block_bytes)
        )

    @property
    def steps(self) -> Tensor:
        """The steps of scales and of offsets, (blocks of rows, super-blocks, 2, 16), f16; nothing, if there are none."""
        nbytes = self.format.step_bytes(self.width)
        steps = self._block_rows[:, :nbytes].view(torch.float16)
        return steps.unflatten(1, (nbytes // STEP_BYTES, 2, ROWS))

    @property
    def _block_rows(self) -> Tensor:
        return self.data.view(blocks_of(self.rows), self.format.nbytes(ROWS, self.width))

    def rows_of(self, first: int, rows: int) -> "PackedWeight":
        """Return some rows alone, in the same memory. They begin with a block and end with one."""
        start, nbytes = (self.format.nbytes(count, self.width) for count in (first, rows))
        return PackedWeight(self.data[start : start + nbytes], rows, self.width, self.format)

    def unpack(self, first: int, last: int, device: torch.device | None = None) -> UnpackedRows:
        """Unpack all blocks that hold a row from `first` to `last`, on the device if one is given.

        The result has whole blocks: rows before `first` and after `last` may be among it.
        """
        which = slice(first // ROWS, blocks_of(last))
        blocks, steps = (one[which].to(device) for one in (self.blocks, self.steps))
        factors, integers = self._split(blocks, steps)
        return self._rows(
            factors.permute(0, 3, 1, 2).flatten(0, 1),  # (B·16, G, F)
            integers.permute(0, 3, 1, 2, 4).flatten(0, 1),  # (B·16, G, V, 4)
        )

    def dequantise(self, first: int = 0, last: int | None = None) -> Tensor:
        """Return the values of the rows from `first` to `last`, (n, width), f32."""
        last = self.rows if last is None else last
        start = first % ROWS
        values = self.unpack(first, last).dequantise()
        return values[start : start + last - first, : self.width]

    def look_up(self, rows: Tensor) -> Tensor:
        """Return the values of these rows (n,) as (n, width), f32. No other row of their blocks is unpacked."""
        which = rows // ROWS
        factors, integers = self._split(
            self.blocks[which], self.steps[which]
        )  # of n blocks of rows
        each, row = torch.arange(len(rows)), rows % ROWS
        unpacked = self._rows(factors[each, :, :, row], integers[each, :, :, row])
        return unpacked.dequantise()[:, : self.width]

    def _split(self, blocks: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Cut bytes (B, G, bytes) into scales and any offsets (B, G, F, 16), and integers (B, G, V, 16, 4)."""
        held, start = self.format, self.format.integers_start
        factors = blocks[..., :start].contiguous()
        if held.has_steps:
            factors = factors.float()
        elif held.scale_bytes == 1:
            factors = (factors.int() << F32_EXPONENT).view(torch.float32)
        else:
            factors = factors.view(torch.float16)
        factors = factors.unflatten(-1, (-1, ROWS))
        if held.has_steps:
            factors *= steps.float().repeat_interleave(SUPER_BLOCKS, 1)[:, : factors.shape[1]]
        return factors, blocks[..., start:].unflatten(-1, (-1, ROWS, QUAD))

    def _rows(self, factors: Tensor, integers: Tensor) -> UnpackedRows:
        """Make rows of scales and any offsets (n, G, F), and of integers as they are stored (n, G, V, 4)."""
        if self.format.is_nibbles:
            integers = unpack_nibbles(integers, -2)  # (n, G, 8, 4)
        offsets = factors[..., 1] if self.format.has_offsets else None
        return UnpackedRows(integers.flatten(2), factors[..., 0], offsets, self.format)


def signed_integers(held: PackedFormat, stored: Tensor) -> Tensor:
    """Return integer - zero point of unsigned integers or codes, uint8, as i8."""
    if held.codes is None:
        return stored.sub(held.zero_point).view(torch.int8)  # wraps around, as it should
    codes = torch.tensor(held.codes, dtype=torch.int8, device=stored.device)
    return codes.index_select(0, stored.flatten().int()).view(stored.shape)


def unpack_nibbles(octets: Tensor, axis: int = -1) -> Tensor:
    """Return the two integers of 4 bits in each byte: along the axis, all low nibbles, then all high ones."""
    return torch.cat((octets & 15, octets >> 4), axis)


def pack_nibbles(integers: Tensor, axis: int = -1) -> Tensor:
    """Undo `unpack_nibbles`. Integers of more bits stand for one integer of 4 bits in each of their bytes."""
    low, high = integers.chunk(2, axis)
    return low | high << 4


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """A matrix of (rows, width) in f32, bf16 or f16, row after row."""

    data: Tensor

    def __post_init__(self) -> None:
        assert self.data.dtype in _FORMATS, self.data.dtype
        assert self.data.dim() == 2
        assert self.data.is_contiguous()

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    @property
    def width(self) -> int:
        return self.data.shape[1]

    @property
    def format(self) -> WeightFormat:
        return _FORMATS[self.data.dtype]


Weight = PackedWeight | FloatWeight


@dataclass(frozen=True, slots=True)
class QuantisedInput:
    """An input (tokens, width) in 8 bits. It is made once, for all matrices that are multiplied with it."""

    records: Tensor  # uint8, `input_bytes` of them
    tokens: int
    width: int

    def __post_init__(self) -> None:
        assert self.records.dtype == torch.uint8
        assert self.records.is_contiguous()
        assert self.records.numel() == input_bytes(self.tokens, self.width)

    @classmethod
    def empty(cls, tokens: int, width: int) -> "QuantisedInput":
        records = torch.empty(input_bytes(tokens, width), dtype=torch.uint8)
        return cls(records, tokens, width)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the tokens of each tile, and their records, (tokens, groups, bytes of a record)."""
        groups = groups_of(self.width)
        for first, size in tiles_of(self.tokens):
            part = self.records[first * groups * RECORD_BYTES :][: size * groups * RECORD_BYTES]
            records = part.view(groups, size, RECORD_BYTES).transpose(0, 1)
            yield slice(first, first + size), records

    def dequantise(self) -> Tensor:
        """Return the values of the integers, (tokens, width), f32."""
        values = torch.empty(self.tokens, groups_of(self.width) * GROUP)
        for tokens, records in self.tiles():
            scales = records[..., :4].contiguous().view(torch.float32)  # (T, G, 1)
            integers = records[..., RECORD_VALUES:].contiguous().view(torch.int8)  # (T, G, 32)
            values[tokens] = (integers * scales).flatten(1)
        return values[:, : self.width]


class Arena:
    """Memory for matrices one after the other, in huge pages where there are any.

    A product reads a tenth faster from as few pages as possible, so a matrix begins in the page that the one
    before it ends in. A matrix that is no longer used gives its own pages back.
    """

    def __init__(self) -> None:
        self._slab: Slab | None = None

    def allocate(self, nbytes: int) -> Tensor:
        """Return memory of so many bytes, which begins at a multiple of 64.

        Raises:
            MemoryError: there is not so much memory.
        """
        if not nbytes or not has_huge_pages():
            return map_pages(nbytes)
        taken = None if self._slab is None else self._slab.take(nbytes, align=VECTOR)
        while taken is None:
            whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
            self._slab = Slab(max(whole, _TOGETHER))
            taken = self._slab.take(nbytes, align=VECTOR)
        return taken


class Angles(NamedTuple):
    """How the queries and keys of some tokens are turned."""

    cosines: Tensor  # (T, 1, dim), of which both halves are equal
    sines: Tensor  # (T, 1, dim), of which the first half is negative
    query_factors: Tensor | None = None  # (T, 1, 1), which multiply the queries; None: ones

    def of(self, token: int) -> "Angles":
        """Those of one token."""
        return self._with(lambda part: part[token : token + 1])

    def some(self, which: slice) -> "Angles":
        """Those of some tokens."""
        return self._with(lambda part: part[which])

    def back(self) -> "Angles":
        """Those that turn back."""
        return self._replace(sines=-self.sines)

    def float(self) -> "Angles":
        """The same in f32."""
        return self._with(Tensor.float)

    def clone(self) -> "Angles":
        """The same in memory of its own."""
        return self._with(Tensor.clone)

    def copy_(self, other: "Angles") -> None:
        """Take the numbers of others of the same shapes."""
        self.cosines.copy_(other.cosines)
        self.sines.copy_(other.sines)
        if self.query_factors is not None and other.query_factors is not None:
            self.query_factors.copy_(other.query_factors)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Angles":
        factors = self.query_factors
        return Angles(
            change(self.cosines), change(self.sines), None if factors is None else change(factors)
        )

    def addresses(self, count: int) -> tuple[int, int, int]:
        """Where so many cosines and sines are, and the factors, which must be f32; 0: there are none."""
        for part in self:
            assert part is None or (part.dtype == torch.float32 and part.is_contiguous())
        assert self.cosines.numel() == self.sines.numel() == count
        factors = self.query_factors
        return (
            self.cosines.data_ptr(),
            self.sines.data_ptr(),
            0 if factors is None else factors.data_ptr(),
        )
