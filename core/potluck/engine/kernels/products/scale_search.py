"""The search for the scales and offsets of a group's 16 rows, as part of the packing kernel.

- `int8`: the scale is largest / 127.
- `int4`, integers from -8 to 7: several scales that map the largest number near -8 are tried. Of each one's
  integers q, the scale that fits best is Σ w q / Σ q q, and the squared error left is
  Σ w w - (Σ w q)² / Σ q q. The scale with the least error is taken.
- `int4-offset`: several lines that map the least number near 0 and the largest near 15 are tried. Of each
  one's integers, scale and offset are those of the line that fits best: with u = w - least, and sums in which each
  number has a weight, the scale is (Σ 1 Σ u q - Σ u Σ q) / (Σ 1 Σ q q - (Σ q)²). Large numbers weigh more, as in
  llama.cpp's Q4_K: their column or channel is often large itself. Where some are 100 times as large as the others,
  random models diverge 0.75 to 1.01 times as much as without weights.
- `int4-super`: as `int4-offset`, but offsets have no sign. The best line's own integers are then fitted once more.
- `mxfp4`: the scale is the least power of two by which the largest is at most 14: between 12 and 14 it becomes
  12, which is no further away than the numbers of twice the scale. Numbers that were of this format stay as
  they are.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST_CODED,
    NOTHING,
    QUAD,
    ROWS,
    TRIED_CUTS,
    TRIED_STEPS,
)
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.ir_types import F32, I32, constant, vector
from potluck.engine.kernels.writing.memory import Pointer, table
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, MXFP4, PackedFormat

INFINITY_BITS = 0x7F800000
_WIDE = vector(F32, ROWS)
_BITS = vector(I32, ROWS)
_MOST = float(INT4_OFFSET.limits[1])
_MANTISSA = 0x7FFFFF


@dataclass(frozen=True, kw_only=True)
class Group:
    """The numbers of a group, of which the 16 rows are lanes."""

    columns: Pointer  # 32 vectors, one for each input
    signed: Value  # of each row the number of largest magnitude, the first of equals
    largest: Value  # its magnitude


def each_column(e: Emitter, columns: Pointer) -> Iterator[Value]:
    """Write code for four columns, which runs for all of them in order.

    Written for all, LLVM would keep them in so many registers that most end up on the stack.
    """
    with e.loop(0, GROUP, QUAD) as first:
        for place in range(QUAD):
            yield columns[first + place]


def largest_of(e: Emitter, columns: Pointer) -> tuple[Value, Value]:
    """Return the number of largest magnitude in each row, the first of equals, and the magnitude's bits."""
    signed, largest = e.variable(constant(_WIDE, 0.0)), e.variable(constant(_BITS, 0))
    for number in each_column(e, columns):
        size = number.magnitude_bits()
        is_larger = size > largest.value
        signed.value = e.select(is_larger, number, signed.value)
        largest.value = e.select(is_larger, size, largest.value)
    return signed.value, largest.value


def _largest_scale(_: Emitter, group: Group) -> tuple[Value, None]:
    """`int8`: the largest magnitude becomes the largest integer."""
    return group.largest / float(INT8.limits[1]), None


def _power_scale(e: Emitter, group: Group) -> tuple[Value, None]:
    """`mxfp4`: the least power of two by which the largest magnitude is at most `LARGEST_CODED`."""
    bits = e.bitcast(group.largest / LARGEST_CODED, _BITS)
    return e.bitcast((bits + _MANTISSA) & INFINITY_BITS, _WIDE), None


def _best_scale(e: Emitter, group: Group) -> tuple[Value, None]:
    """`int4`: try scales; return the scale that fits the best integers best."""
    best_scale = e.variable(constant(_WIDE, 0.0))
    best_gain = e.variable(constant(_WIDE, -1.0))
    inverse_of_one = -1.0 / group.signed  # the largest maps to -1
    steps = table(e, "steps", TRIED_STEPS)
    with e.loop(0, len(TRIED_STEPS)) as index:
        fit, norm = _fit(e, group.columns, inverse_of_one * steps[index])
        scale = fit / norm
        gain = fit * scale
        is_better = (norm > 0.0) & (gain > best_gain.value)
        best_scale.value = e.select(is_better, scale, best_scale.value)
        best_gain.value = e.select(is_better, gain, best_gain.value)
    return best_scale.value, None


def _fit(e: Emitter, columns: Pointer, inverse: Value) -> tuple[Value, Value]:
    """Return Σ w q and Σ q q of the integers q that this inverse scale gives."""
    fit, norm = (e.variable(constant(_WIDE, 0.0)) for _ in range(2))
    for number in each_column(e, columns):
        integer = nearest_integer(INT4, number * inverse)
        fit.value = fit.value + number * integer
        norm.value = norm.value + integer * integer
    return fit.value, norm.value


@dataclass(frozen=True)
class Weighting:
    """How much the error of a number counts: as much as its magnitude and the root mean square of its group."""

    root: Value

    @classmethod
    def of(cls, e: Emitter, columns: Pointer) -> "Weighting":
        """Return that of a group."""
        squares = e.variable(constant(_WIDE, 0.0))
        for number in each_column(e, columns):
            squares.value = squares.value + number * number
        mean = squares.value / float(GROUP)
        return cls(e.intrinsic(f"llvm.sqrt.v{ROWS}f32", _WIDE, [mean]))

    def weight(self, number: Value) -> Value:
        return number.e.bitcast(number.magnitude_bits(), _WIDE) + self.root


def _best_line(e: Emitter, group: Group) -> tuple[Value, Value]:
    """`int4-offset`: try lines; return the scale and the offset that fit the best integers best."""
    zero = e.value(constant(_WIDE, 0.0))
    search = _LineSearch.of(e, group.columns, scale=zero)
    search.try_cuts()
    is_flat = search.span < NOTHING
    scale = e.select(is_flat, zero, search.scale.value)
    return scale, e.select(is_flat, 0.0 - search.least, search.offset.value)


def _best_line_below(e: Emitter, group: Group) -> tuple[Value, Value]:
    """`int4-super`: the same with an offset that is not below zero; it is zero where all numbers are above."""
    zero = e.value(constant(_WIDE, 0.0))
    search = _LineSearch.of(e, group.columns, is_below=True)
    search.try_cuts()
    inverse = 1.0 / search.scale.value
    search.try_line(inverse, 0.0 - (search.least + search.offset.value) * inverse)
    is_nothing = group.largest < NOTHING
    return (
        e.select(is_nothing, zero, search.scale.value),
        e.select(is_nothing, zero, search.offset.value),
    )


@dataclass(frozen=True, kw_only=True)
class _LineSearch:
    """A search for the line, value = scale x integer - offset, that fits the numbers of a group best."""

    e: Emitter
    columns: Pointer
    is_below: bool  # lines whose offset would be below zero go through zero
    least: Value
    span: Value  # from the least number to the largest
    weighting: Weighting
    weights: Value  # Σ weight
    above: Value  # Σ weight x (number - least)
    # the best line so far
    scale: Variable
    offset: Variable
    gain: Variable  # the larger, the smaller the squared error

    @classmethod
    def of(
        cls, e: Emitter, columns: Pointer, *, scale: Value | None = None, is_below: bool = False
    ) -> "_LineSearch":
        """Begin with a line that any other is better than: of this scale, or one that fills the range."""
        start = 0.0 if is_below else math.inf
        least, most = (e.variable(constant(_WIDE, number)) for number in (start, -math.inf))
        for number in each_column(e, columns):
            least.value = number.at_most(least.value)
            most.value = number.at_least(most.value)
        span, weighting = most.value - least.value, Weighting.of(e, columns)
        weights, above = (e.variable(constant(_WIDE, 0.0)) for _ in range(2))
        for number in each_column(e, columns):
            weight = weighting.weight(number)
            weights.value = weights.value + weight
            above.value = above.value + weight * (number - least.value)
        return cls(
            e=e,
            columns=columns,
            is_below=is_below,
            least=least.value,
            span=span,
            weighting=weighting,
            weights=weights.value,
            above=above.value,
            scale=e.variable(span / _MOST if scale is None else scale),
            offset=e.variable(0.0 - least.value),
            gain=e.variable(constant(_WIDE, -math.inf)),
        )

    def try_cuts(self) -> None:
        """Try the lines of `TRIED_CUTS`."""
        e = self.e
        steps, cuts = (table(e, "cuts", numbers) for numbers in zip(*TRIED_CUTS, strict=True))
        with e.loop(0, len(TRIED_CUTS)) as index:
            inverse = e.splat(steps[index], ROWS) / self.span
            self.try_line(inverse, e.splat(cuts[index], ROWS))

    def try_line(self, inverse: Value, cut: Value) -> None:
        """Take the line that fits best to the integers of (number - least) x inverse - cut, where it is better.

        `s` is the sum of weights, `q` of weight x integer, `qq` of weight x integer x integer, and so on; u is what a
        number is above the least.
        """
        e, least, s, u = self.e, self.least, self.weights, self.above
        sums = [e.variable(constant(_WIDE, 0.0)) for _ in range(3)]
        for number in each_column(e, self.columns):
            above, weight = number - least, self.weighting.weight(number)
            integer = nearest_integer(INT4_OFFSET, above * inverse - cut)
            product = weight * integer
            parts = (product, product * integer, product * above)
            for total, part in zip(sums, parts, strict=True):
                total.value = total.value + part
        q, qq, uq = (one.value for one in sums)
        norm, fit = s * qq - q * q, s * uq - u * q
        scale = fit / norm
        offset, gain = 0.0 - (least + (u - scale * q) / s), fit * scale
        if self.is_below:
            n, nq = u + least * s, uq + least * q  # of the numbers themselves
            is_above, zero = offset < 0.0, e.value(constant(_WIDE, 0.0))
            scale = e.select(is_above, nq / qq, scale)
            gain = e.select(is_above, s * (nq * scale) - n * n, gain)
            offset = e.select(is_above, zero, offset)
        is_better = (norm > 0.0) & (
            gain > self.gain.value
        )  # no line fits where all integers are the same
        pairs = ((self.scale, scale), (self.offset, offset), (self.gain, gain))
        for best, other in pairs:
            best.value = e.select(is_better, other, best.value)


FIND: Mapping[PackedFormat, Callable[[Emitter, Group], tuple[Value, Value | None]]] = {
    INT8: _largest_scale,
    INT4: _best_scale,
    INT4_OFFSET: _best_line,
    INT4_SUPER: _best_line_below,
    MXFP4: _power_scale,
}
"""What finds a group's scales, and its offsets if the format has any."""


def nearest_integer(held: PackedFormat, steps: Value) -> Value:
    """Return the nearest integer that the format holds, as f32."""
    least, most = held.limits
    return steps.at_least(least).at_most(most).rounded()
