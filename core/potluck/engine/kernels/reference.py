"""The reference kernels in plain torch: they run anywhere, and say what generated kernels have to compute.

Both pack into the same bytes and quantise into the same records. Products differ by the rounding of f32.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.gates import gate
from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.layout import (
    AT_LEAST_STEPS,
    GROUP,
    HALF_OF_LEAST,
    LARGEST,
    LARGEST_CODED,
    LARGEST_MULTIPLE,
    LARGEST_SCALE,
    LEAST_NORMAL,
    NOTHING,
    RECORD_SUM,
    RECORD_VALUES,
    RECORD_WORTH,
    ROWS,
    TRIED_CUTS,
    TRIED_STEPS,
    blocks_of,
    code_middles,
    groups_of,
)
from potluck.engine.kernels.products.integers import (
    write_factors,
    write_integers,
    write_multiples,
    write_scales,
)
from potluck.engine.kernels.products.tensors import F32_EXPONENT, PackedWeight, QuantisedInput
from potluck.model.families.facts import Activation
from potluck.model.formats import (
    INT4,
    INT4_OFFSET,
    INT4_SUPER,
    INT8,
    MXFP4,
    SUPER_BLOCKS,
    PackedFormat,
)

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
        which, held = slice(first // ROWS, first // ROWS + blocks), packed.format
        signed = _largest(numbers)  # (B, 16, G)
        scale, offset = _FIND[held](numbers, signed)
        scale = torch.where(signed.abs() < NOTHING, 0.0, scale)
        target = packed.blocks[which]
        if held.has_steps and offset is not None:
            scale, offset = _multiples(packed, which, numbers, scale, offset)
        else:
            scale = write_scales(held, target, _limited(scale) if held.scale_bytes > 1 else scale)
            if offset is not None and held.offsets_start is not None:
                offset = write_factors(target, held.offsets_start, _limited(offset))
        above = numbers if offset is None else numbers + offset[..., None]
        write_integers(held, target, _stored(above * _inverse(scale)[..., None], held))
        return bool(padded.isfinite().all())

    def _multiply(
        self, packed: PackedWeight, x: QuantisedInput, out: Tensor, addend: Tensor | None
    ) -> None:
        values = x.dequantise()
        for first in range(0, packed.rows, _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, packed.rows))
            product = F.linear(values, packed.dequantise(rows.start, rows.stop))
            out[:, rows] = product if addend is None else product + addend[..., rows].float()


def _multiples(
    packed: PackedWeight, which: slice, numbers: Tensor, scale: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Write scales and offsets (B, 16, G) as multiples of steps; return them as written."""
    step, scale = _stepped(scale)
    inverse = _inverse(scale * step)
    integers = _integers((numbers + offset[..., None]) * inverse[..., None], packed.format)
    s, q, n = (torch.zeros_like(scale) for _ in range(3))
    each = (numbers.unbind(-1), _weights(numbers).unbind(-1), integers.unbind(-1))
    for number, weight, integer in zip(*each, strict=True):
        s, q, n = s + weight, q + weight * integer, n + weight * number
    fitted = (scale * step * q - n) / s
    more, offset = _stepped(torch.where(fitted > 0, fitted, 0.0))
    return write_multiples(packed, which, (scale, offset), (step, more))


def _stepped(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step of each of the numbers (B, 16, G), and the nearest multiples of it."""
    groups = numbers.shape[-1]
    padded = F.pad(numbers, (0, -groups % SUPER_BLOCKS)).unflatten(-1, (-1, SUPER_BLOCKS))
    step = padded.amax(-1) / LARGEST_MULTIPLE
    small = (step + HALF_OF_LEAST + AT_LEAST_STEPS) - AT_LEAST_STEPS
    step = torch.where(step < LEAST_NORMAL, small, step)
    step = _limited(step).half().float().repeat_interleave(SUPER_BLOCKS, -1)[..., :groups]
    return step, (numbers * _inverse(step)).nan_to_num(0).clamp(0, LARGEST_MULTIPLE).round()


def _inverse(numbers: Tensor) -> Tensor:
    return torch.where(numbers == 0, 0.0, 1 / numbers)


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
    least, span = _range(numbers)
    best = _Line(torch.zeros_like(span), 0.0 - least, torch.full_like(span, -torch.inf))
    best = _try_lines(numbers, least, span, best)
    is_flat = span < NOTHING
    return torch.where(is_flat, 0.0, best.scale), torch.where(is_flat, 0.0 - least, best.offset)


def _best_line_below(numbers: Tensor, signed: Tensor) -> tuple[Tensor, Tensor]:
    least, span = _range(numbers, most_of_least=0.0)
    begin = _Line(span / INT4_SUPER.limits[1], 0.0 - least, torch.full_like(span, -torch.inf))
    best = _try_lines(numbers, least, span, begin, is_below=True)
    inverse = 1 / best.scale
    cut = 0.0 - (least + best.offset) * inverse
    best = _fit_line(numbers, least, inverse, cut, best, is_below=True)
    is_nothing = signed.abs() < NOTHING
    return torch.where(is_nothing, 0.0, best.scale), torch.where(is_nothing, 0.0, best.offset)


def _range(numbers: Tensor, most_of_least: float = torch.inf) -> tuple[Tensor, Tensor]:
    """Return the least number of each group, at most what is given, and how far the largest is above it."""
    least = torch.full_like(numbers[..., 0], most_of_least)
    most = torch.full_like(least, -torch.inf)
    for number in numbers.unbind(-1):
        least, most = (
            torch.where(number < least, number, least),
            torch.where(number > most, number, most),
        )
    return least, most - least


class _Line(NamedTuple):
    """value = scale x integer - offset of each group, (B, 16, G), and how well it fits."""

    scale: Tensor
    offset: Tensor
    gain: Tensor


def _try_lines(
    numbers: Tensor, least: Tensor, span: Tensor, best: _Line, *, is_below: bool = False
) -> _Line:
    for steps, cut in TRIED_CUTS:
        inverse = torch.full_like(span, steps) / span
        best = _fit_line(numbers, least, inverse, torch.tensor(cut), best, is_below=is_below)
    return best


def _fit_line(
    numbers: Tensor,
    least: Tensor,
    inverse: Tensor,
    cut: Tensor,
    best: _Line,
    *,
    is_below: bool = False,
) -> _Line:
    """Return the line that fits best to the integers of (number - least) x inverse - cut, or the best so far.

    With `is_below`, lines whose offset would be below zero go through zero.
    """
    above = numbers - least[..., None]
    integers = _integers(above * inverse[..., None] - cut[..., None], INT4_OFFSET)
    s, q, qq, u, uq = (torch.zeros_like(least) for _ in range(5))
    each = (above.unbind(-1), _weights(numbers).unbind(-1), integers.unbind(-1))
    for number, weight, integer in zip(*each, strict=True):
        product = weight * integer
        s, q, qq = s + weight, q + product, qq + product * integer
        u, uq = u + weight * number, uq + product * number
    norm, fit = s * qq - q * q, s * uq - u * q
    scale = fit / norm
    line = _Line(scale, 0.0 - (least + (u - scale * q) / s), fit * scale)
    if is_below:
        n, nq = u + least * s, uq + least * q
        scale = nq / qq
        through_zero = (scale, torch.zeros_like(scale), s * (nq * scale) - n * n)
        is_above = line.offset < 0
        line = _Line(
            *(torch.where(is_above, *both) for both in zip(through_zero, line, strict=True))
        )
    is_better = (norm > 0) & (line.gain > best.gain)
    return _Line(*(torch.where(is_better, *both) for both in zip(line, best, strict=True)))


def _weights(numbers: Tensor) -> Tensor:
    """How much the error of each number of a group counts."""
    squares = torch.zeros_like(numbers[..., 0])
    for number in numbers.unbind(-1):
        squares = squares + number * number
    root = (
        (squares / GROUP).double().sqrt().float()
    )  # torch's own of f32 is not always the nearest number
    return numbers.abs() + root[..., None]


_FIND: Mapping[PackedFormat, Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]] = {
    INT8: _largest_scale,
    INT4: _best_scale,
    INT4_OFFSET: _best_line,
    INT4_SUPER: _best_line_below,
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
