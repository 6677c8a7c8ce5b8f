"""Matrices in the quantised formats of the Hub's tools, with their dequantised values.

Written field by field after AutoGPTQ's `QuantLinear.pack`, AutoAWQ's `WQLinear_GEMM.from_linear`
and compressed-tensors' `pack_to_int32`, so that our readers are compared with code other than their
own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Quantised:
    """The stored tensors by the last part of their names, and the values (out, in) in f32."""

    parts: dict[str, Tensor]
    values: Tensor
    integers: Tensor  # minus their zero points, (out, in)
    scales: Tensor  # the scale of each weight, (out, in)


def random_matrix(rows: int, inputs: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn((rows, inputs), generator=torch.Generator().manual_seed(seed))


def _words(fields: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack (n, fields) to (n, fields · bits / 32) i32: the first field lowest, or in this order."""
    if 32 % bits:  # one field after the other, also across words
        fields = torch.nn.functional.pad(fields.long(), (0, -fields.shape[1] % 32))
        stream = ((fields[..., None] >> torch.arange(bits)) & 1).flatten(1)
        words = (stream.unflatten(1, (-1, 32)) << torch.arange(32)).sum(2)
        return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    per_word = 32 // bits
    fields = torch.nn.functional.pad(fields.long(), (0, -fields.shape[1] % per_word))
    grouped = fields.view(len(fields), -1, per_word)
    words = torch.zeros(grouped.shape[:2], dtype=torch.int64)
    for place in range(per_word):
        column = place if order is None else order[place]
        words |= grouped[:, :, column] << (bits * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _affine(
    weight: Tensor, bits: int, group: int, group_of: Tensor, *, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers (out, in), zero points and scales (out, groups)."""
    rows, inputs = weight.shape
    groups, most = -(-inputs // group), (1 << bits) - 1
    zeros, scales = torch.empty(rows, groups), torch.empty(rows, groups)
    for index in range(groups):
        part = weight[:, group_of == index]
        if symmetric:
            zeros[:, index] = 1 << (bits - 1)
            scales[:, index] = part.abs().amax(1) / ((most - 1) / 2)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, index] = (high - low) / most
            zeros[:, index] = (-low / scales[:, index]).round()
    scales = scales.to(dtype)
    spread = scales.float()[:, group_of]
    integers = (weight / spread + zeros[:, group_of]).round().clamp(0, most)
    return integers.long(), zeros.long(), scales


def _worth(
    parts: dict[str, Tensor], integers: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor
) -> Quantised:
    difference, spread = integers - zeros[:, group_of], scales.float()[:, group_of]
    return Quantised(parts, difference.float() * spread, difference, spread)


def gptq(
    weight: Tensor,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    version: int = 1,
    reordered: bool = False,
) -> Quantised:
    group_of = torch.arange(weight.shape[1]) // group
    if reordered:
        group_of = group_of[
            torch.randperm(len(group_of), generator=torch.Generator().manual_seed(5))
        ]
    integers, zeros, scales = _affine(
        weight, bits, group, group_of, symmetric=symmetric, dtype=torch.float16
    )
    stored_zeros = (zeros - (1 if version == 1 else 0)) & ((1 << bits) - 1)
    parts = {
        "qweight": _words(integers, bits).t().contiguous(),
        "qzeros": _words(stored_zeros.t(), bits),
        "scales": scales.t().contiguous(),
        "g_idx": group_of.to(torch.int32),
    }
    return _worth(parts, integers, zeros, scales, group_of)


def awq(weight: Tensor, *, group: int = 32) -> Quantised:
    group_of = torch.arange(weight.shape[1]) // group
    integers, zeros, scales = _affine(
        weight, 4, group, group_of, symmetric=False, dtype=torch.float16
    )
    parts = {
        "qweight": _words(integers.t(), 4, _AWQ_COLUMNS),
        "qzeros": _words(zeros.t(), 4, _AWQ_COLUMNS),
        "scales": scales.t().contiguous(),
    }
    return _worth(parts, integers, zeros, scales, group_of)


def packed(weight: Tensor, *, bits: int = 4, group: int = 32, symmetric: bool = True) -> Quantised:
    group_of = torch.arange(weight.shape[1]) // group
    integers, zeros, scales = _affine(
        weight, bits, group, group_of, symmetric=symmetric, dtype=torch.bfloat16
    )
    parts = {
        "weight_packed": _words(integers, bits),
        "weight_scale": scales,
    }
    if not symmetric:
        parts["weight_zero_point"] = _words(zeros.t(), bits).t().contiguous()
    return _worth(parts, integers, zeros, scales, group_of)


def fp8(weight: Tensor, *, block: tuple[int, int] | None, dtype: torch.dtype) -> Quantised:
    """Quantise to FP8 with a scale per block; without blocks, with a scale per row."""
    rows, inputs = weight.shape
    high, wide = block or (1, inputs)
    scales = torch.empty(-(-rows // high), -(-inputs // wide))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            scales[i, j] = part.abs().max() / 448
    scales = scales.to(dtype)
    spread = scales.float().repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :inputs]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    name = "weight_scale" if block is None else "weight_scale_inv"
    return Quantised({"weight": stored, name: scales}, stored.float() * spread, stored, spread)


def fp8_whole(weight: Tensor) -> Quantised:
    """Quantise to FP8 with one scale, a tensor without dimensions."""
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    parts = {"weight": stored, "weight_scale": scale}
    return Quantised(parts, stored.float() * scale, stored, scale.expand_as(weight))


def int8(weight: Tensor) -> Quantised:
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    stored = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
    values = stored.float() * scale.float()
    return Quantised({"weight": stored, "weight_scale": scale}, values, stored, scale.float())
