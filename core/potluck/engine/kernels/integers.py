"""Lay out the integers, scales and offsets of a packed format in torch."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import GROUP, QUAD, ROWS, blocks_of, groups_of
from potluck.engine.kernels.tensors import F32_EXPONENT, PackedWeight, pack_nibbles, signed_integers
from potluck.model.formats import PackedFormat

_ROUNDING = 2.0**-11  # largest relative error of a number in f16 that is not subnormal


def pack_integers(
    packed: PackedWeight,
    first: int,
    integers: Tensor,
    scales: Tensor,
    offsets: Tensor | None = None,
) -> bool:
    """Pack rows that were quantised elsewhere, exactly, if the format can hold them.

    Args:
        packed: where they go.
        first: the first of these rows, a multiple of 16.
        integers: (n, width), i8, signed; with offsets 0 to 15.
        scales: (n, groups), f32; the integers are multiplied with these.
        offsets: (n, groups), f32; these are subtracted then. None: nothing is.

    Returns:
        False, and nothing was written: an integer has too many bits or no code, f16 holds a scale only with an
        error of more than 2⁻¹¹, a scale is no power of two where the format needs one, or the format has no
        offsets. In a format with offsets, symmetric input is stored
        as Q4_1 stores it: an offset of 8 scales. There, tiny scales lose up to 2⁻²⁵, as they would if
        the values were packed anew.
    """
    if integers.numel() == 0:
        return True
    held = packed.format
    if held.has_offsets and offsets is None:
        middle = 1 << (held.integer_bits - 1)
        integers, offsets = integers + middle, scales * middle
    elif offsets is not None and not held.has_offsets:
        return False
    low, high = integers.aminmax()
    least, most = held.limits
    factors = [scales] if offsets is None else [scales, offsets]
    if low < least or high > most:
        return False
    if held.codes is None and not all(one.half().isfinite().all() for one in factors):
        return False
    if held.codes is not None:
        if not _is_coded(held, integers, scales):
            return False
    elif offsets is None and not _is_near(scales.half(), scales):
        return False
    rows, width = integers.shape
    blocks, groups = blocks_of(rows), groups_of(width)
    lacking = (0, groups * GROUP - width, 0, blocks * ROWS - rows)
    numbers = F.pad(integers, lacking) if any(lacking) else integers
    target = packed.blocks[first // ROWS :][:blocks]
    by_block = [F.pad(one, (0, 0, 0, lacking[3])).view(blocks, ROWS, groups) for one in factors]
    write_scales(held, target, by_block[0])
    if held.offsets_start is not None:
        write_factors(target, held.offsets_start, by_block[1])
    unsigned = stored_integers(held, numbers).view(blocks, ROWS, groups, GROUP)
    write_integers(held, target, unsigned)
    return True


def stored_integers(held: PackedFormat, signed: Tensor) -> Tensor:
    """Return what is stored for integer - zero point, i8, that the format holds: uint8."""
    if held.codes is None:
        return signed.view(torch.uint8) + held.zero_point  # wraps around, as it should
    codes = torch.zeros(256, dtype=torch.uint8)
    for code, integer in reversed([*enumerate(held.codes)]):
        codes[integer & 0xFF] = code
    return codes.index_select(0, signed.view(torch.uint8).flatten().int()).view(signed.shape)


def write_scales(held: PackedFormat, blocks: Tensor, numbers: Tensor) -> Tensor:
    """Write scales (B, 16, G), f32, as the format holds them; return them as written, f32.

    Where the format holds exponents, the numbers are powers of two or zeros.
    """
    if held.scale_bytes > 1:
        return write_factors(blocks, 0, numbers)
    exponents = numbers.contiguous().view(torch.int32) >> F32_EXPONENT
    blocks[..., :ROWS] = exponents.to(torch.uint8).transpose(1, 2)
    return (exponents << F32_EXPONENT).view(torch.float32)


def write_factors(blocks: Tensor, start: int, numbers: Tensor) -> Tensor:
    """Write scales or offsets (B, 16, G) as f16, `start` bytes into each block; return them as written, f32."""
    half = numbers.half()
    place = blocks[..., start : start + half.itemsize * ROWS]
    place[:] = half.transpose(1, 2).contiguous().view(torch.uint8)
    return half.float()


def write_integers(held: PackedFormat, blocks: Tensor, integers: Tensor) -> None:
    """Write unsigned integers (B, 16, G, 32), uint8, to the blocks (B, G, bytes)."""
    # Four inputs of a row are one number of 32 bits.
    quads = integers.view(torch.int32).permute(0, 2, 3, 1)  # (B, G, 8, 16)
    if held.is_nibbles:
        quads = pack_nibbles(quads, 2)  # (B, G, 4, 16)
    blocks.view(torch.int32)[..., held.integers_start // QUAD :] = quads.flatten(2)


def _is_coded(held: PackedFormat, integers: Tensor, scales: Tensor) -> bool:
    """Whether there is a code for each of these integers, and each scale is a power of two or zero."""
    is_power = (scales.contiguous().view(torch.int32) & ((1 << F32_EXPONENT) - 1)) == 0
    if not bool(is_power.all()) or bool((scales < 0).any()):
        return False
    again = signed_integers(held, stored_integers(held, integers.contiguous()))
    return torch.equal(again, integers)


def _is_near(half: Tensor, numbers: Tensor) -> bool:
    return bool(((half.float() - numbers).abs() <= numbers.abs() * _ROUNDING).all())
