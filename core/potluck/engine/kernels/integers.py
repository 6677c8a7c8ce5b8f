"""Pack integers, scales and offsets that are given, as they are: a matrix that was quantised elsewhere."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import (
    GROUP,
    LIMITS,
    QUAD,
    ROWS,
    SCALES_BYTES,
    ZERO_POINT,
    blocks_of,
    groups_of,
    has_offsets,
    payload_start,
)
from potluck.engine.kernels.tensors import PackedWeight
from potluck.model.schemes import INTEGER_BITS

_ROUNDING = 2.0**-11  # of a number to f16, that is none of the smallest


def pack_integers(
    packed: PackedWeight,
    first: int,
    integers: Tensor,
    scales: Tensor,
    offsets: Tensor | None = None,
) -> bool:
    """Pack (n, width) i8 and (n, groups) f32 as the rows from `first` on, if they can be held as they are.

    Args:
        packed: where they go.
        first: a multiple of 16.
        integers: those of 4 bits with offsets are 0 to 15, without -8 to 7, whatever holds them.
        scales: what they are multiplied with.
        offsets: what is subtracted then; None: nothing.

    Returns:
        False, and nothing was written: an integer has too many bits, or a scale is none of f16 but for a
        rounding of 2⁻¹¹; or there are offsets where none are held. Beside offsets, as which it goes too,
        the smallest scales are rounded by 2⁻²⁵, which packing anew would do too.
    """
    if integers.numel() == 0:
        return True
    if has_offsets(packed.bits) and offsets is None:  # from a middle to the least
        middle = -LIMITS[4][0]
        integers, offsets = integers + middle, scales * middle
    elif offsets is not None and not has_offsets(packed.bits):
        return False
    low, high = integers.aminmax()
    least, most = LIMITS[packed.bits]
    factors = [scales] if offsets is None else [scales, offsets]
    if low < least or high > most or not all(one.half().isfinite().all() for one in factors):
        return False
    if offsets is None and not _is_near(scales.half(), scales):
        return False
    rows, width = integers.shape
    blocks, groups = blocks_of(rows), groups_of(width)
    lacking = (0, groups * GROUP - width, 0, blocks * ROWS - rows)
    numbers = F.pad(integers, lacking) if any(lacking) else integers
    unsigned = numbers.view(torch.uint8) + ZERO_POINT[packed.bits]  # wraps around, as it should
    # Four inputs of a row are one number of 32 bits: (B, 16, G, 8) → (B, G, 8, 16).
    quads = unsigned.view(torch.int32).view(blocks, ROWS, groups, -1).permute(0, 2, 3, 1)
    if INTEGER_BITS[packed.bits] == 4:
        low_half, high_half = quads.chunk(2, 2)
        quads = low_half | high_half << 4
    target = packed.groups[first // ROWS :][:blocks]
    for number, factor in enumerate(factors):
        half = F.pad(factor.half(), (0, 0, 0, lacking[3])).view(blocks, ROWS, groups)
        place = target[..., number * SCALES_BYTES : (number + 1) * SCALES_BYTES]
        place[:] = half.transpose(1, 2).contiguous().view(torch.uint8)
    target.view(torch.int32)[..., payload_start(packed.bits) // QUAD :] = quads.flatten(2)
    return True


def _is_near(half: Tensor, numbers: Tensor) -> bool:
    return bool(((half.float() - numbers).abs() <= numbers.abs() * _ROUNDING).all())
