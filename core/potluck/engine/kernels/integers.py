"""Pack integers and scales that are given, as they are: a matrix that was quantised elsewhere."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST,
    QUAD,
    ROWS,
    SCALES_BYTES,
    ZERO_POINT,
    blocks_of,
    groups_of,
)
from potluck.engine.kernels.tensors import PackedWeight

_ROUNDING = 2.0**-11  # of a number to f16, that is none of the smallest


def pack_integers(packed: PackedWeight, first: int, integers: Tensor, scales: Tensor) -> bool:
    """Pack (n, width) i8 and (n, groups) f32 as the rows from `first` on, if they can be held as they are.

    Returns:
        False, and nothing was written: an integer has too many bits, or a scale is none of f16.
    """
    least, most = (-ZERO_POINT[4], ZERO_POINT[4] - 1) if packed.bits == 4 else (-LARGEST, LARGEST)
    if integers.numel() == 0:
        return True
    low, high = integers.aminmax()
    half = scales.half()
    # False of what is no number.
    rounded = (half.float() - scales).abs() <= scales.abs() * _ROUNDING
    if low < least or high > most or not rounded.all() or not half.isfinite().all():
        return False
    rows, width = integers.shape
    blocks, groups = blocks_of(rows), groups_of(width)
    lacking = (0, groups * GROUP - width, 0, blocks * ROWS - rows)
    numbers = F.pad(integers, lacking) if any(lacking) else integers
    unsigned = numbers.view(torch.uint8) + ZERO_POINT[packed.bits]  # wraps around, as it should
    half = F.pad(half, (0, 0, 0, lacking[3])).view(blocks, ROWS, groups)
    # Four inputs of a row are one number of 32 bits: (B, 16, G, 8) → (B, G, 8, 16).
    quads = unsigned.view(torch.int32).view(blocks, ROWS, groups, -1).permute(0, 2, 3, 1)
    if packed.bits == 4:
        low_half, high_half = quads.chunk(2, 2)
        quads = low_half | high_half << 4
    target = packed.groups[first // ROWS :][:blocks]
    target[..., :SCALES_BYTES] = half.transpose(1, 2).contiguous().view(torch.uint8)
    target.view(torch.int32)[..., SCALES_BYTES // QUAD :] = quads.flatten(2)
    return True
