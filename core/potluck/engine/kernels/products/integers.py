"""Lay out the integers, scales and offsets of a packed format in torch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST_MULTIPLE,
    QUAD,
    ROWS,
    blocks_of,
    groups_of,
)
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.kernels.products.tensors import (
    F32_EXPONENT,
    PackedWeight,
    pack_nibbles,
    signed_integers,
)
from potluck.model.formats import SUPER_BLOCKS, PackedFormat

Pair = tuple[Tensor, Tensor]
"""Of scales and of offsets."""

_ROUNDING = 2.0**-11  # largest relative error of a number in f16 that is not subnormal


def pack_integers(packed: PackedWeight, first: int, rows: ScaledIntegers) -> bool:
    """Pack rows that were quantised elsewhere, exactly, if the format can hold them.

    Args:
        packed: where they go.
        first: the first of these rows, a multiple of 16.
        rows: what they are.

    Returns:
        False, and nothing was written: an integer has too many bits or no code, f16 holds a scale only with an
        error of more than 2⁻¹¹, a scale is no power of two where the format needs one, scales and offsets are not
        known to be multiples of steps where it needs these, or the format has no offsets. In a format with offsets
        in f16, symmetric input is stored as Q4_1 stores it: an offset of 8 scales. There, tiny scales lose up to
        2⁻²⁵, as they would if the values were packed anew.
    """
    integers, scales, offsets, steps = rows.integers, rows.scales, rows.offsets, rows.steps
    if integers.numel() == 0:
        return True
    held = packed.format
    if held.has_steps and (offsets is None or steps is None):
        return False
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
    multiples = _multiples(factors, steps) if held.has_steps and steps is not None else None
    if not _can_hold(held, integers, factors, multiples):
        return False
    _write(packed, first, integers, multiples or factors)
    return True


def _write(
    packed: PackedWeight, first: int, integers: Tensor, factors: list[Tensor] | tuple[Pair, Pair]
) -> None:
    """Write rows of integers, with scales and any offsets (n, G), or their multiples and their steps."""
    held, (rows, width) = packed.format, integers.shape
    blocks, groups = blocks_of(rows), groups_of(width)
    lacking = (0, groups * GROUP - width, 0, blocks * ROWS - rows)
    numbers = F.pad(integers, lacking) if any(lacking) else integers
    which = slice(first // ROWS, first // ROWS + blocks)
    target = packed.blocks[which]

    def by_block(of_rows: Tensor) -> Tensor:
        return F.pad(of_rows, (0, 0, 0, lacking[3])).view(blocks, ROWS, groups)

    if isinstance(factors, tuple):
        multiples, steps = ((by_block(one), by_block(other)) for one, other in factors)
        write_multiples(packed, which, multiples, steps)
    else:
        write_scales(held, target, by_block(factors[0]))
        if held.offsets_start is not None:
            write_factors(target, held.offsets_start, by_block(factors[1]))
    unsigned = stored_integers(held, numbers).view(blocks, ROWS, groups, GROUP)
    write_integers(held, target, unsigned)


def _can_hold(
    held: PackedFormat,
    integers: Tensor,
    factors: Sequence[Tensor],
    multiples: tuple[Pair, Pair] | None,
) -> bool:
    """Whether a format can hold scales, and offsets if it has them: exactly, or rounded to f16."""
    if held.has_steps:
        return multiples is not None
    if held.codes is not None:
        return _is_coded(held, integers, factors[0])
    scales = factors[0]
    return all(bool(one.half().isfinite().all()) for one in factors) and (
        held.has_offsets or _is_near(scales.half(), scales)
    )


def _multiples(factors: Sequence[Tensor], steps: Tensor) -> tuple[Pair, Pair] | None:
    """The multiples of each of the factors, and their steps, (n, G) all; None: they are none."""
    half = steps.half().float()
    repeated = half.repeat_interleave(SUPER_BLOCKS, 1)[:, : factors[0].shape[1]].unbind(-1)
    found = [
        (one / step).nan_to_num(0).round() for one, step in zip(factors, repeated, strict=True)
    ]
    for one, step, multiple in zip(factors, repeated, found, strict=True):
        if not torch.equal(multiple * step, one) or bool(
            ((multiple < 0) | (multiple > LARGEST_MULTIPLE)).any()
        ):
            return None
    return (found[0], found[1]), (repeated[0], repeated[1])


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


def write_multiples(
    packed: PackedWeight,
    which: slice,
    multiples: Pair,
    steps: Pair,
) -> Pair:
    """Write the scales and the offsets of some rows of blocks as multiples of steps; return them as written, f32.

    Args:
        packed: where they go.
        which: the rows of blocks.
        multiples: (B, 16, G) of each, whole numbers from 0 to 255.
        steps: (B, 16, G) of each, f16 in f32; groups of a super-block have the same.
    """
    held, blocks = packed.format, packed.blocks[which]
    assert held.offsets_start is not None
    for place, start, one in zip((0, 1), (0, held.offsets_start), multiples, strict=True):
        blocks[..., start : start + ROWS] = one.to(torch.uint8).transpose(1, 2)
        packed.steps[which, :, place] = steps[place][..., ::SUPER_BLOCKS].transpose(1, 2).half()
    return multiples[0] * steps[0], multiples[1] * steps[1]


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
