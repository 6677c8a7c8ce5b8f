"""Packed bytes taken apart on another device: rows of integers, and their scales.

Some rows at a time: what a device keeps is another form of the same numbers, and beside it there is
never more than one block of rows of anything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.kernels import PackedWeight
from potluck.engine.kernels.layout import (
    GROUP,
    QUAD,
    ROWS,
    VECTOR,
    blocks_of,
    has_offsets,
    payload_start,
)
from potluck.model.schemes import INTEGER_BITS

ROWS_AT_ONCE = 1024  # 32 MB of 32-bit integers at a width of 8192, while a matrix is converted


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """Some rows: value = scale x (integer - zero point) - offset; the zero point as `layout` has it."""

    first: int
    integers: Tensor  # (n, G, 32) uint8; n is a multiple of 16, rows beyond the matrix are zero
    scales: Tensor  # (n, G) f16
    offsets: Tensor | None  # (n, G) f16, where there are any


def integer_rows(
    weight: PackedWeight, device: torch.device, rows: int = ROWS_AT_ONCE
) -> Iterator[IntegerRows]:
    """All rows of a packed matrix, so many at a time (a multiple of 16), on the device."""
    blocks = rows // ROWS
    for first in range(0, blocks_of(weight.rows), blocks):
        groups = weight.groups[first : first + blocks].to(device)  # (B, G, bytes)
        B, G, _ = groups.shape
        start = payload_start(weight.bits)
        halves = groups[..., :start].contiguous().view(torch.float16)  # (B, G, 16 or 32)
        by_row = halves.unflatten(-1, (-1, ROWS)).permute(2, 0, 3, 1).reshape(-1, B * ROWS, G)
        payload = groups[..., start:].unflatten(-1, (-1, VECTOR))  # (B, G, V, 64)
        if INTEGER_BITS[weight.bits] == 4:
            payload = torch.cat((payload & 15, payload >> 4), 2)  # (B, G, 8, 64)
        quads = payload.view(B, G, GROUP // QUAD, ROWS, QUAD)
        yield IntegerRows(
            first * ROWS,
            quads.permute(0, 3, 1, 2, 4).reshape(B * ROWS, G, GROUP),
            by_row[0],
            by_row[1] if has_offsets(weight.bits) else None,
        )
