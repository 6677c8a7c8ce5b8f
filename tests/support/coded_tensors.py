"""Matrices in the formats of MLX, bitsandbytes and the microscaling specifications, with their values.

Written after the documentation: `mlx.core.quantize`; bitsandbytes' `QuantState.as_dict` and `Linear8bitLt`;
OCP Microscaling Formats; compressed-tensors' `compressors/nvfp4`; NVIDIA's Model Optimizer. Each was compared once
with what the library itself writes (mlx 0.32, bitsandbytes 0.50, compressed-tensors 0.20), bit by bit.
"""

import json

import torch
from quantised_tensors import Quantised
from torch import Tensor

E2M1 = torch.tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6))
NF4 = torch.tensor(
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    )
)  # fmt: skip


def _bit_stream(fields: Tensor, bits: int) -> Tensor:
    """Pack (n, fields) to (n, fields · bits / 32) i32: one field after the other, from the low end."""
    places = torch.arange(bits)
    stream = ((fields.long()[..., None] >> places) & 1).flatten(1)
    words = (stream.unflatten(1, (-1, 32)) << torch.arange(32)).sum(2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _grouped(weight: Tensor, group: int) -> Tensor:
    return weight.unflatten(1, (-1, group))


def mlx(
    weight: Tensor, *, bits: int = 4, group: int = 32, dtype: torch.dtype = torch.bfloat16
) -> Quantised:
    """Integers with a scale and a bias for each group; mlx gives groups with a large minimum a negative scale."""
    groups, most = _grouped(weight, group), (1 << bits) - 1
    low, high = groups.amin(2), groups.amax(2)
    is_low = low.abs() > high.abs()
    scales = torch.where(is_low, high - low, low - high) / most
    biases = torch.where(is_low, low, high)
    scales, biases = scales.to(dtype), biases.to(dtype)
    spread, start = scales.float()[..., None], biases.float()[..., None]
    integers = ((groups - start) / spread).round().clamp(0, most)
    values = (integers * spread + start).flatten(1)
    packed = _bit_stream(integers.flatten(1), bits).view(torch.uint32)
    parts = {"weight": packed, "scales": scales, "biases": biases}
    return Quantised(parts, values, integers.flatten(1), spread.expand_as(groups).flatten(1))


def _nearest(values: Tensor, table: Tensor) -> Tensor:
    """The index of the entry that is nearest to each value."""
    return (values[..., None] - table).abs().argmin(-1)


def _pairs(codes: Tensor, *, high_first: bool = False) -> Tensor:
    pairs = codes.flatten(1).unflatten(1, (-1, 2)).to(torch.uint8)
    first, second = (1, 0) if high_first else (0, 1)
    return pairs[..., first] | pairs[..., second] << 4


def nvfp4(weight: Tensor, *, divides: bool) -> Quantised:
    """E2M1 with a scale of E4M3 for 16 inputs and one for the matrix; `divides`: as compressed-tensors has it."""
    groups = _grouped(weight, 16)
    whole = weight.abs().max() / (448 * 6)
    scales = (groups.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
    over = (1 / whole).view(1)
    spread = (scales.float() / over if divides else scales.float() * whole)[..., None]
    codes = _nearest(groups / spread, E2M1)
    values = (E2M1[codes] * spread).flatten(1)
    if divides:
        parts = {
            "weight_packed": _pairs(codes),
            "weight_scale": scales,
            "weight_global_scale": over,
        }
    else:
        parts = {"weight": _pairs(codes), "weight_scale": scales, "weight_scale_2": whole}
    return Quantised(parts, values, codes, spread.expand_as(groups).flatten(1))


def _powers(groups: Tensor, largest: int) -> Tensor:
    """Codes of E8M0 for groups whose values' largest exponent is this."""
    return (groups.abs().amax(2).log2().floor() - largest + 127).clamp(0, 254).to(torch.uint8)


def mxfp4(weight: Tensor, *, is_mlx: bool = False) -> Quantised:
    groups = _grouped(weight, 32)
    scales = _powers(groups, 2)
    spread = torch.pow(2.0, scales.float() - 127)[..., None]
    codes = _nearest(groups / spread, E2M1)
    values, packed = (E2M1[codes] * spread).flatten(1), _pairs(codes)
    parts = (
        {"weight": packed.view(torch.uint32), "scales": scales}
        if is_mlx
        else {"weight_packed": packed, "weight_scale": scales}
    )
    integers = (2 * E2M1[codes]).flatten(1).to(torch.int8)
    return Quantised(parts, values, integers, (spread / 2).expand_as(groups).flatten(1))


def mxfp8(weight: Tensor, *, is_mlx: bool = False) -> Quantised:
    groups = _grouped(weight, 32)
    scales = _powers(groups, 8)
    spread = torch.pow(2.0, scales.float() - 127)[..., None]
    stored = (groups / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    values = (stored.float() * spread).flatten(1)
    whole = stored.flatten(1)
    parts = (
        {"weight": whole.view(torch.uint8).view(torch.uint32), "scales": scales}
        if is_mlx
        else {"weight": whole, "weight_scale": scales}
    )
    return Quantised(parts, values, whole, spread.expand_as(groups).flatten(1))


def e8m0_blocks(weight: Tensor, block: tuple[int, int] = (32, 32)) -> Quantised:
    """FP8 whose scale for each block is a power of two (DeepSeek's `ue8m0`)."""
    rows, inputs = weight.shape
    high, wide = block
    padded = torch.nn.functional.pad(weight, (0, -inputs % wide, 0, -rows % high))
    blocks = padded.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).abs().amax((1, 3))
    scales = (blocks / 448).log2().ceil().add(127).to(torch.uint8)
    spread = torch.pow(2.0, scales.float() - 127)
    spread = spread.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :inputs]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    parts = {"weight": stored, "weight_scale_inv": scales.view(torch.float8_e8m0fnu)}
    return Quantised(parts, stored.float() * spread, stored, spread)


def bitsandbytes(
    weight: Tensor, *, block: int = 64, nested: bool = False, kind: str = "nf4"
) -> Quantised:
    """Codes of a table, the scales perhaps quantised too ("double quantisation")."""
    rows, inputs = weight.shape
    flat = weight.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).unflatten(0, (-1, block))
    absmax, table = blocks.abs().amax(1), NF4 if kind == "nf4" else E2M1 / 6
    notes = {
        "quant_type": kind,
        "blocksize": block,
        "dtype": "bfloat16",
        "shape": [rows, inputs],
    }
    below: dict[str, Tensor] = {}
    if nested:
        offset = absmax.mean()
        steps = torch.linspace(-1, 1, 256).sort().values
        centred = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).unflatten(
            0, (-1, 256)
        )
        largest = centred.abs().amax(1)
        codes = _nearest(centred / largest[:, None], steps).to(torch.uint8)
        notes |= {
            "nested_blocksize": 256,
            "nested_dtype": "float32",
            "nested_offset": offset.item(),
        }
        below = {"nested_absmax": largest, "nested_quant_map": steps}
        stored = codes.flatten()[: len(absmax)].contiguous()
        absmax = (steps[codes.int()] * largest[:, None]).flatten()[: len(absmax)]
        absmax = absmax + notes["nested_offset"]
    else:
        stored = absmax
    codes = _nearest(blocks / absmax[:, None], table)
    values = (table[codes] * absmax[:, None]).flatten()[: len(flat)].view(rows, inputs)
    packed = _pairs(codes.flatten()[None, : len(flat)], high_first=True).view(-1, 1)
    written = torch.frombuffer(bytearray(json.dumps(notes).encode()), dtype=torch.uint8)
    parts = {
        "weight": packed,
        "weight.absmax": stored,
        "weight.quant_map": table.clone(),
        f"weight.quant_state.bitsandbytes__{kind}": written,
        **{f"weight.{name}": part for name, part in below.items()},
    }
    return Quantised(parts, values, codes, absmax)


def bitsandbytes_8(weight: Tensor) -> Quantised:
    largest = weight.abs().amax(1)
    stored = (weight * (127 / largest)[:, None]).round().to(torch.int8)
    scale = (largest / 127)[:, None]
    parts = {"weight": stored, "SCB": largest}
    return Quantised(parts, stored.float() * scale, stored, scale.expand_as(weight))


def integers(
    weight: Tensor, *, bits: int = 8, group: int = 32, symmetric: bool = True
) -> Quantised:
    """A byte each, with a scale and perhaps a zero point for each group (compressed-tensors, `int-quantized`)."""
    groups, half = _grouped(weight, group), 1 << (bits - 1)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if symmetric:
        scales = (groups.abs().amax(2) / (half - 0.5)).to(torch.bfloat16)
        zeros = torch.zeros_like(low).to(torch.int8)
    else:
        scales = ((high - low) / (2 * half - 1)).to(torch.bfloat16)
        zeros = (-half - low / scales.float()).round().clamp(-half, half - 1).to(torch.int8)
    spread, middle = scales.float()[..., None], zeros.float()[..., None]
    stored = (groups / spread + middle).round().clamp(-half, half - 1).to(torch.int8)
    difference = stored.float() - middle
    parts = {"weight": stored.flatten(1), "weight_scale": scales}
    if not symmetric:
        parts["weight_zero_point"] = zeros
    return Quantised(
        parts,
        (difference * spread).flatten(1),
        difference.flatten(1),
        spread.expand_as(groups).flatten(1),
    )
