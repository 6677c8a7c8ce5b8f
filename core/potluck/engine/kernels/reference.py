"""The reference kernels in plain torch: they run anywhere, and say what generated kernels have to compute.

Both pack into the same bytes and quantise into the same records. Products differ by the rounding of f32.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.gates import gate
from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.integers import write_factors, write_integers, write_scales
from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST,
    LARGEST_CODED,
    LARGEST_SCALE,
    NOTHING,
    RECORD_SUM,
    RECORD_VALUES,
    RECORD_WORTH,
    ROWS,
    TRIED_RANGES,
    TRIED_STEPS,
    blocks_of,
    code_middles,
    groups_of,
)
from potluck.engine.kernels.tensors import F32_EXPONENT, PackedWeight, QuantisedInput
from potluck.model.families.facts import Activation
from potluck.model.formats import INT4, INT4_OFFSET, INT8, MXFP4, PackedFormat

_ROWS_AT_ONCE = 1024  # of weights dequantised for a product: 8 MB at a width of 2048


class ReferenceKernels(Kernels):
    """Kernels of torch's own operators."""

    name = "reference"

    def quantise(self, x: Tensor) -> QuantisedInput:
        tokens, width = x.shape
        groups = groups_of(width)
        made = QuantisedInput.empty(tokens, width)
        numbers = F.pad(x.float(), (0, groups * GROUP - width)).view(tokens, groups, GROUP)
        largest = numbers.abs().amax(-1)
        is_nothing = largest < NOTHING
        # Written as a quotient of tensors, because torch computes `127 / tensor` as 127 times a reciprocal.
        inverse = torch.where(is_nothing, 0.0, torch.full_like(largest, LARGEST) / largest)
        scale = torch.where(is_nothing, 0.0, largest / LARGEST)
        scaled = (numbers * inverse[..., None]).nan_to_num(-LARGEST).clamp(-LARGEST, LARGEST)
        integers = scaled.round().to(torch.int8)
        sums = -integers.sum(-1, dtype=torch.int32)
        worth = sums.float() * scale
        for which, records in made.tiles():
            records[..., :RECORD_SUM] = scale[which, :, None].view(torch.uint8)
            records[..., RECORD_SUM:RECORD_WORTH] = sums[which, :, None].view(torch.uint8)
            records[..., RECORD_WORTH:RECORD_VALUES] = worth[which, :, None].view(torch.uint8)
            records[..., RECORD_VALUES:] = integers[which].view(torch.uint8)
        return made

    def largest(self, numbers: Tensor) -> float:
        return numbers.abs().max().item() if numbers.numel() else 0.0

    def quantise_gated(self, gate_up: Tensor, activation: Activation = "silu") -> QuantisedInput:
        return self.quantise(gate(gate_up.float(), activation))

    def _pack(self, packed: PackedWeight, first: int, weight: Tensor) -> bool:
        blocks, groups = blocks_of(len(weight)), groups_of(packed.width)
        padded = torch.zeros(blocks * ROWS, groups * GROUP)
        padded[: len(weight), : packed.width] = weight
        numbers = padded.view(blocks, ROWS, groups, GROUP)
        target, held = packed.blocks[first // ROWS :][:blocks], packed.format
        signed = _largest(numbers)  # (B, 16, G)
        scale, offset = _FIND[held](numbers, signed)
        above = numbers
        if offset is not None and held.offsets_start is not None:
            offset = write_factors(target, held.offsets_start, _limited(offset))
            above = numbers + offset[..., None]
        scale = torch.where(signed.abs() < NOTHING, 0.0, scale)
        scale = write_scales(held, target, _limited(scale) if held.scale_bytes > 1 else scale)
        inverse = torch.where(scale == 0, 0.0, 1 / scale)
        write_integers(held, target, _stored(above * inverse[..., None], held))
        return bool(padded.isfinite().all())

    def _multiply(
        self, packed: PackedWeight, x: QuantisedInput, out: Tensor, addend: Tensor | None
    ) -> None:
        values = x.dequantise()
        for first in range(0, packed.rows, _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, packed.rows))
            product = F.linear(values, packed.dequantise(rows.start, rows.stop))
            out[:, rows] = product if addend is None else product + addend[..., rows].float()


def _largest(numbers: Tensor) -> Tensor:
    """Return the number of largest magnitude in each group, the first of equals."""
    largest = numbers[..., 0]
    for number in numbers.unbind(-1)[1:]:
        largest = torch.where(number.abs() > largest.abs(), number, largest)
    return largest


def _largest_scale(_: Tensor, signed: Tensor) -> tuple[Tensor, None]:
    return signed.abs() / INT8.limits[1], None


def _power_scale(_: Tensor, signed: Tensor) -> tuple[Tensor, None]:
    bits = (signed.abs() / LARGEST_CODED).view(torch.int32)
    exponents = bits + ((1 << F32_EXPONENT) - 1) >> F32_EXPONENT
    return (exponents << F32_EXPONENT).view(torch.float32), None


def _best_scale(numbers: Tensor, signed: Tensor) -> tuple[Tensor, None]:
    best_scale, best_gain = torch.zeros_like(signed), torch.full_like(signed, -1.0)
    for steps in TRIED_STEPS:
        integers = _integers(numbers * ((-1 / signed) * steps)[..., None], INT4)
        fit, norm = torch.zeros_like(signed), torch.zeros_like(signed)
        for number, integer in zip(numbers.unbind(-1), integers.unbind(-1), strict=True):
            fit, norm = fit + number * integer, norm + integer * integer  # in the kernel's order
        scale = fit / norm
        is_better = (norm > 0) & (fit * scale > best_gain)
        best_scale = torch.where(is_better, scale, best_scale)
        best_gain = torch.where(is_better, fit * scale, best_gain)
    return best_scale, None


def _best_line(numbers: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    least = torch.full_like(numbers[..., 0], torch.inf)
    most = -least
    for number in numbers.unbind(-1):
        least, most = (
            torch.where(number < least, number, least),
            torch.where(number > most, number, most),
        )
    span, above = most - least, numbers - least[..., None]
    best_scale, best_offset = torch.zeros_like(span), 0.0 - least
    best_gain = torch.full_like(span, -1.0)
    for steps in TRIED_RANGES:
        inverse = torch.full_like(span, steps) / span
        half_of_more = (torch.tensor(steps) - INT4_OFFSET.limits[1]) * 0.5
        integers = _integers(above * inverse[..., None] - half_of_more, INT4_OFFSET)
        q, qq, u, uq = (torch.zeros_like(span) for _ in range(4))
        for each, integer in zip(above.unbind(-1), integers.unbind(-1), strict=True):
            q, qq = q + integer, qq + integer * integer
            u, uq = u + each, uq + each * integer
        norm, fit = GROUP * qq - q * q, GROUP * uq - u * q
        scale = fit / norm
        offset = 0.0 - (least + (u - scale * q) / GROUP)
        is_better = (norm > 0) & (fit * scale > best_gain)
        best_scale = torch.where(is_better, scale, best_scale)
        best_offset = torch.where(is_better, offset, best_offset)
        best_gain = torch.where(is_better, fit * scale, best_gain)
    is_flat = span < NOTHING
    return torch.where(is_flat, 0.0, best_scale), torch.where(is_flat, 0.0 - least, best_offset)


_FIND: Mapping[PackedFormat, Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]] = {
    INT8: _largest_scale,
    INT4: _best_scale,
    INT4_OFFSET: _best_line,
    MXFP4: _power_scale,
}
"""What finds scales and offsets (B, 16, G) of a format.

It takes the numbers (B, 16, G, 32), and each group's number of largest magnitude (B, 16, G)."""


def _limited(numbers: Tensor) -> Tensor:
    return numbers.clamp(-LARGEST_SCALE, LARGEST_SCALE)


def _stored(steps: Tensor, held: PackedFormat) -> Tensor:
    """Return the nearest integer plus the zero point, or its code, as uint8."""
    if held.codes is None:
        return (_integers(steps, held) + held.zero_point).to(torch.uint8)
    size, code = steps.abs(), torch.zeros(steps.shape, dtype=torch.uint8)
    for middle, is_even in code_middles(held):
        code += size >= middle if is_even else size > middle
    is_negative = (steps < 0) & (code > 0)
    return code.add_(is_negative, alpha=len(held.codes) // 2)


def _integers(steps: Tensor, held: PackedFormat) -> Tensor:
    return steps.nan_to_num(0).clamp(*held.limits).round()
