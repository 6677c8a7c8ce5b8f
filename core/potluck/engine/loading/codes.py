"""Read matrices whose bytes are codes of floats, of 8 or 4 bits, and not integers.

    e4m3    8 bits: sign, 4 of exponent, 3 of mantissa (OCP 8-bit Floating Point Specification)
    e2m1    4 bits: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives, two in a byte, the first one low
            (OCP Microscaling Formats Specification)
    e8m0    a scale of 8 bits: 2^(code - 127)
    nf4     4 bits: a table, with a scale for each block of weights, the first one of a byte high; `fp4` of
            bitsandbytes is a table too (bitsandbytes `functional.py`; QLoRA, https://arxiv.org/abs/2305.14314)

A value is that of its code, times the scale of its block.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from potluck.engine.kernels.layout import GROUP
from potluck.engine.kernels.products.scaled import ScaledIntegers, from_e8m0
from potluck.engine.kernels.products.tensors import signed_integers
from potluck.engine.loading.targets import Target
from potluck.errors import BrokenModelError
from potluck.model.formats import MXFP4
from potluck.model.quantized import Quantization

Fill = Callable[[Target, int, Tensor], None]
"""Passes rows on to a target: takes the number of the first one, and the rows as stored."""


def fill_fp8(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Bytes of e4m3, and a scale for each block, for each row or for the matrix."""
    (scale,) = (as_scales(part) for part in parts.values())
    block = quantization.block

    def fill(target: Target, first: int, rows: Tensor) -> None:
        values = from_e4m3(rows)
        numbers = torch.arange(first, first + len(rows))
        if block is not None:
            blocks = scale[numbers // block[0]]  # (n, blocks of inputs)
            values *= blocks.repeat_interleave(min(block[1], width), 1)[:, :width]
        else:
            values *= scale if scale.numel() == 1 else scale.view(-1, 1)[numbers]
        target.fill(first, values)

    return fill


def fill_fp4(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Codes of e2m1 with a scale for each group (NVFP4, MXFP4), and perhaps one for the matrix.

    The latter divides where it is called `weight_global_scale` (compressed-tensors), and multiplies where it is
    called `weight_scale_2` (NVIDIA's Model Optimizer).
    """
    scales = as_scales(parts["weight_scale"])
    if (over := parts.get("weight_scale_2")) is not None:
        scales = scales * over.float()
    elif (under := parts.get("weight_global_scale")) is not None:
        scales = scales / under.float()
    return fill_e2m1(scales, quantization.group_size or width, width)


def fill_e2m1(scales: Tensor, group: int, width: int) -> Fill:
    """Codes of e2m1 whose scales (out, groups) are known."""

    def fill(target: Target, first: int, rows: Tensor) -> None:
        octets = rows.view(torch.uint8)
        codes = torch.stack((octets & 15, octets >> 4), 2).flatten(1)[:, :width]
        # Twice the values of e2m1, so that they are integers.
        integers, halves = signed_integers(MXFP4, codes), scales[first : first + len(rows)] / 2
        if group % GROUP == 0:
            repeated = halves.repeat_interleave(group // GROUP, 1)[:, : -(-width // GROUP)]
            target.fill_integers(first, ScaledIntegers(integers, repeated))
        else:
            target.fill(first, integers.float() * halves.repeat_interleave(group, 1)[:, :width])

    return fill


def fill_mxfp4(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Codes of e2m1, 16 bytes for each group, with a scale of e8m0 (gpt-oss)."""
    assert quantization.group_size is not None
    return fill_e2m1(from_e8m0(parts["scales"]), quantization.group_size, width)


class _Notes(msgspec.Struct):
    """What bitsandbytes writes in JSON beside a matrix of 4 bits."""

    shape: list[Annotated[int, Meta(ge=1)]]
    blocksize: Annotated[int, Meta(ge=2)]
    nested_blocksize: Annotated[int, Meta(ge=1)] = 256
    nested_offset: float = 0.0


def fill_bitsandbytes(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Codes of a table, with a scale for each block of weights, row after row."""
    del quantization
    notes = _notes_of(parts)
    table, scales, block = parts["quant_map"], _scales_of(parts, notes), notes.blocksize
    rows = notes.shape[0]
    if notes.shape != [rows, width] or width % 2 or len(scales) != -(-rows * width // block):
        raise _broken("says another shape or other blocks than its tensors have")

    def fill(target: Target, first: int, octets: Tensor) -> None:
        codes = torch.stack((octets >> 4, octets & 15), 2).flatten(1)
        weights = torch.arange(first * width, (first + len(octets)) * width)
        target.fill(first, table[codes.int()] * scales[weights // block].view(-1, width))

    return fill


def _notes_of(parts: Mapping[str, Tensor]) -> _Notes:
    name = next(name for name in parts if name.startswith("bitsandbytes__"))
    try:
        return msgspec.json.decode(bytes(parts[name].numpy()), type=_Notes)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _broken("has a quant_state that cannot be read") from error


def _scales_of(parts: Mapping[str, Tensor], notes: _Notes) -> Tensor:
    """The scale of each block; with "double quantisation" scales are codes of a table with scales too."""
    absmax = parts["absmax"]
    if absmax.dtype != torch.uint8:
        return absmax.float()
    tables = (parts.get("nested_quant_map"), parts.get("nested_absmax"))
    if tables[0] is None or tables[1] is None:
        raise _broken("has scales of 8 bits without their nested_quant_map and nested_absmax")
    blocks = torch.arange(len(absmax)) // notes.nested_blocksize
    if len(tables[1]) != -(-len(absmax) // notes.nested_blocksize):
        raise _broken("says other blocks of scales than its tensors have")
    return tables[0][absmax.int()] * tables[1][blocks] + notes.nested_offset


def as_scales(stored: Tensor) -> Tensor:
    """Scales in f32; bytes are e8m0."""
    if stored.dtype == torch.uint8:
        return from_e8m0(stored)
    return from_e4m3(stored) if stored.dtype == torch.float8_e4m3fn else stored.float()


def from_e4m3(stored: Tensor) -> Tensor:
    """Convert to f32, seven times faster than torch: as an f16, whose exponent bias is 8 more."""
    bits = stored.view(torch.uint8).to(torch.int16)
    if bool(((bits & 0x7F) == 0x7F).any()):  # NaN, which the shift would turn into a number
        return stored.view(torch.float8_e4m3fn).float()
    return ((bits << 8) & -0x8000 | (bits << 7) & 0x3F80).view(torch.float16).float().mul_(256)


def _broken(what: str) -> BrokenModelError:
    return BrokenModelError(
        f"A matrix of this model {what}. Its files are damaged, or do not belong together: download them again."
    )
