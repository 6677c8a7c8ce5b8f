"""Packed weights and quantised inputs as values, and what their numbers are worth."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.kernels.layout import (
    FLOAT_BITS,
    GROUP,
    QUAD,
    RECORD_BYTES,
    RECORD_VALUES,
    ROWS,
    SCALES_BYTES,
    VECTOR,
    ZERO_POINT,
    blocks_of,
    group_bytes,
    groups_of,
    has_offsets,
    input_bytes,
    packed_bytes,
    payload_start,
    tiles_of,
)
from potluck.engine.pages import HUGE_PAGE, Slab, has_huge_pages, map_pages
from potluck.model.schemes import INTEGER_BITS

_TOGETHER = 1 << 28  # bytes that are mapped at a time; those that nobody writes to take no memory


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix of (rows, width) in 4 or 8 bits, perhaps with offsets, as `layout` says it lies in memory."""

    data: Tensor  # uint8, `packed_bytes` of them
    rows: int
    width: int
    bits: int

    def __post_init__(self) -> None:
        assert self.bits in ZERO_POINT, f"{self.bits} bits"
        assert self.data.dtype == torch.uint8
        assert self.data.is_contiguous()
        assert self.data.numel() == packed_bytes(self.rows, self.width, self.bits)

    @classmethod
    def empty(
        cls, rows: int, width: int, bits: int, arena: "Arena | None" = None
    ) -> "PackedWeight":
        """Memory for such a matrix, to be filled by `Kernels.pack_rows`."""
        nbytes = packed_bytes(rows, width, bits)
        data = map_pages(nbytes) if arena is None else arena.allocate(nbytes)
        return cls(data, rows, width, bits)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def groups(self) -> Tensor:
        """The same bytes, (blocks, groups, bytes of a group)."""
        shape = (blocks_of(self.rows), groups_of(self.width), group_bytes(self.bits))
        return self.data.view(shape)

    def dequantise(self, first: int = 0, last: int | None = None) -> Tensor:
        """What the rows from first to last are worth, (rows, width), f32."""
        last = self.rows if last is None else last
        groups = self.groups[first // ROWS : blocks_of(last)]  # (B, G, bytes)
        scales, offsets = self._factors(groups)  # (B, G, 16)
        payload = groups[..., payload_start(self.bits) :].unflatten(
            -1, (-1, VECTOR)
        )  # (B, G, V, 64)
        if INTEGER_BITS[self.bits] == 4:
            payload = torch.cat((payload & 15, payload >> 4), 2)  # (B, G, 8, 64)
        integers = payload.to(torch.int32) - ZERO_POINT[self.bits]
        quads = integers.unflatten(-1, (ROWS, QUAD))  # (B, G, 8, 16, 4)
        blocks, groups_, *_ = quads.shape
        by_row = quads.permute(0, 3, 1, 2, 4).reshape(blocks, ROWS, groups_, GROUP)
        values = by_row.float() * scales.transpose(1, 2)[..., None]  # (B, 16, G, 32)
        if offsets is not None:
            values -= offsets.transpose(1, 2)[..., None]
        start = first % ROWS
        return values.reshape(blocks * ROWS, -1)[start : start + last - first, : self.width]

    def take(self, rows: Tensor) -> Tensor:
        """What these rows (n,) are worth, (n, width), f32; of their blocks nothing else is unpacked."""
        groups, each = self.groups[rows // ROWS], torch.arange(len(rows))  # (n, G, bytes)
        scales, offsets = self._factors(groups)  # (n, G, 16)
        payload = groups[..., payload_start(self.bits) :].unflatten(-1, (-1, ROWS, QUAD))
        row = rows % ROWS
        own, scale = payload[each, :, :, row], scales[each, :, row]  # (n, G, V, 4), (n, G)
        if INTEGER_BITS[self.bits] == 4:
            own = torch.cat((own & 15, own >> 4), 2)
        integers = own.to(torch.int32) - ZERO_POINT[self.bits]
        values = integers.flatten(2).float() * scale[..., None]  # (n, G, 32)
        if offsets is not None:
            values -= offsets[each, :, row][..., None]
        return values.flatten(1)[:, : self.width]

    def _factors(self, groups: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scales and offsets of the rows of these groups, (…, 16), f32."""
        count = 2 if has_offsets(self.bits) else 1
        halves = groups[..., : count * SCALES_BYTES].contiguous().view(torch.float16).float()
        return halves[..., :ROWS], halves[..., ROWS:] if count > 1 else None


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """A matrix of (rows, width) in bf16 or f16, row after row."""

    data: Tensor

    def __post_init__(self) -> None:
        assert self.data.dtype in (torch.bfloat16, torch.float16), self.data.dtype
        assert self.data.dim() == 2
        assert self.data.is_contiguous()

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    @property
    def width(self) -> int:
        return self.data.shape[1]

    @property
    def bits(self) -> int:
        return FLOAT_BITS

    def dequantise(self) -> Tensor:
        """What it is worth, (rows, width), f32."""
        return self.data.float()


Weight = PackedWeight | FloatWeight


@dataclass(frozen=True, slots=True)
class QuantisedInput:
    """Tokens (tokens, width) in 8 bits: made once, read by all matrices that have this input."""

    records: Tensor  # uint8, `input_bytes` of them
    tokens: int
    width: int
    dtype: torch.dtype  # of the numbers it was made of, and of the products

    def __post_init__(self) -> None:
        assert self.records.dtype == torch.uint8
        assert self.records.is_contiguous()
        assert self.records.numel() == input_bytes(self.tokens, self.width)

    @classmethod
    def empty(cls, tokens: int, width: int, dtype: torch.dtype) -> "QuantisedInput":
        records = torch.empty(input_bytes(tokens, width), dtype=torch.uint8)
        return cls(records, tokens, width, dtype)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Which tokens, and their records, (tokens, groups, bytes of a record)."""
        groups = groups_of(self.width)
        for first, size in tiles_of(self.tokens):
            part = self.records[first * groups * RECORD_BYTES :][: size * groups * RECORD_BYTES]
            records = part.view(groups, size, RECORD_BYTES).transpose(0, 1)
            yield slice(first, first + size), records

    def dequantise(self) -> Tensor:
        """What the integers are worth, (tokens, width), f32."""
        values = torch.empty(self.tokens, groups_of(self.width) * GROUP)
        for tokens, records in self.tiles():
            scales = records[..., :4].contiguous().view(torch.float32)  # (T, G, 1)
            integers = records[..., RECORD_VALUES:].contiguous().view(torch.int8)  # (T, G, 32)
            values[tokens] = (integers * scales).flatten(1)
        return values[:, : self.width]


class Arena:
    """Memory for matrices one after the other, in huge pages where there are any.

    A product reads a tenth faster with as few pages as it takes: what a matrix leaves of its last page is
    the next one's. A matrix that is no longer used gives its own pages back.
    """

    def __init__(self) -> None:
        self._slab: Slab | None = None

    def allocate(self, nbytes: int) -> Tensor:
        """Bytes that begin at a multiple of 64.

        Raises:
            MemoryError: there are not as many.
        """
        if not nbytes or not has_huge_pages():
            return map_pages(nbytes)
        taken = None if self._slab is None else self._slab.take(nbytes, align=VECTOR)
        while taken is None:
            whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
            self._slab = Slab(max(whole, _TOGETHER))
            taken = self._slab.take(nbytes, align=VECTOR)
        return taken
