"""The kernel that packs weights: finds each group's scale and writes the integers as products read them.

A block of 16 rows x 32 inputs is read row by row and transposed, so that the 16 rows are the lanes of
vectors and all 16 scales are found at once. Each format finds them in its own way (`_FIND`):

- `int8`: the scale is largest / 127.
- `int4`, integers from -8 to 7: several scales that map the largest number near -8 are tried. Of each one's
  integers q, the scale that fits best is Σ w q / Σ q q, and the squared error left is
  Σ w w - (Σ w q)² / Σ q q. The scale with the least error is taken.
- `int4-offset`: several ranges that map the least number near 0 and the largest near 15 are tried. Of each
  one's integers, scale and offset are those of the line that fits best: with u = w - least, the scale is
  (32 Σ u q - Σ u Σ q) / (32 Σ q q - (Σ q)²).
- `mxfp4`: the scale is the least power of two by which the largest is at most 14: between 12 and 14 it becomes
  12, which is no further away than the numbers of twice the scale. Numbers that were of this format stay as
  they are.

All arithmetic is exact IEEE 754 in a fixed order: every processor, and the reference in torch, packs
the same weights into the same bytes. The kernel refuses what is not finite.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F32,
    I8,
    I16,
    I32,
    KIND_BF16,
    KIND_F16,
    KIND_F32,
    POINTER,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.kinds import from_half, to_half
from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST_CODED,
    LARGEST_SCALE,
    NOTHING,
    QUAD,
    ROWS,
    TRIED_RANGES,
    TRIED_STEPS,
    code_middles,
)
from potluck.engine.kernels.memory import Address, Number, Pointer, Record, Span, stack, table
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.tensors import F32_EXPONENT
from potluck.engine.kernels.values import Value
from potluck.model.formats import INT4, INT4_OFFSET, INT8, MXFP4, PackedFormat


class Pack(Record):
    """The arguments of packing: whole blocks of 16 rows, and whole groups of 32 inputs."""

    source = Address(I8)  # (16 blocks, 32 groups)
    kind = Number()  # of the source's numbers
    stride = Number()  # numbers from one row to the next
    groups = Number()
    blocks = Number()
    packed = Address(I8)


# A `Pack` → 1 if all numbers are finite, otherwise 0.
PACK = ir.FunctionType(I32, [POINTER])

_WIDE = vector(F32, ROWS)
_BITS = vector(I32, ROWS)
_INFINITY_BITS = 0x7F800000
_MANTISSA = 0x7FFFFF


def emit_pack(module: ir.Module, name: str, path: Path, weight_format: PackedFormat) -> ir.Function:
    """Write the kernel that packs whole blocks of 16 rows and whole groups of 32 inputs."""
    has_codes = weight_format.codes is not None
    code = _emit_code(module, f"{name}_code", path, weight_format) if has_codes else None
    e = Emitter(ir.Function(module, PACK, name), path)
    given = Pack.load(e.arguments[0])
    columns = stack(e, _WIDE, GROUP)
    highest = e.variable(constant(_BITS, 0))  # magnitude of any number, as bits
    with e.loop(0, given.blocks) as block:
        start = block * ROWS * given.stride
        with e.loop(0, given.groups) as group:
            first = start + group * GROUP
            with e.loop(0, GROUP, ROWS) as column:
                _read_square(e, given, first + column, columns + column)
            place = block * given.groups + group
            target = given.packed.skip(place, weight_format.block_bytes)
            largest = _pack_group(e, weight_format, columns, target, code)
            highest.value = largest.at_least(highest.value)
    return e.end(e.zext(highest.value.reduce("umax") < _INFINITY_BITS, I32))


def _each_column(e: Emitter, columns: Pointer) -> Iterator[Value]:
    """Write code for four columns, which runs for all of them in order.

    Written for all, LLVM would keep them in so many registers that most end up on the stack.
    """
    with e.loop(0, GROUP, QUAD) as first:
        for place in range(QUAD):
            yield columns[first + place]


def _read_square(e: Emitter, given: Pack, first: Value, columns: Pointer) -> None:
    """Load 16 rows x 16 inputs, from the number `first` on, as 16 vectors of 16 rows."""
    with (
        e.loop(0, ROWS) as row,
        e.each_kind(given.kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds,
    ):
        for kind in kinds:
            columns[row] = given.source.of(kind)[Span(first + row * given.stride, ROWS)]
    rows = [columns[row] for row in range(ROWS)]
    for number, column in enumerate(e.transpose(rows)):
        columns[number] = column


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The numbers of a group, of which the 16 rows are lanes."""

    columns: Pointer  # 32 vectors, one for each input
    signed: Value  # of each row the number of largest magnitude, the first of equals
    largest: Value  # its magnitude


def _pack_group(
    e: Emitter,
    held: PackedFormat,
    columns: Pointer,
    target: Pointer,
    code: ir.Function | None,
) -> Value:
    """Write 16 scales, offsets if the format has them, and the integers.

    Returns:
        The largest magnitudes, as bits.
    """
    signed, bits = _largest(e, columns)
    largest = e.bitcast(bits, _WIDE)
    is_nothing = largest < NOTHING
    zero = e.value(constant(_WIDE, 0.0))
    scale, offset = _FIND[held](e, _Group(columns=columns, signed=signed, largest=largest))
    if offset is not None and held.offsets_start is not None:
        offset = _put_half(offset, target.skip(held.offsets_start))
    put = _put_half if held.scale_bytes > 1 else _put_exponents
    scale = put(e.select(is_nothing, zero, scale), target)
    inverse = e.select(scale.equals(0.0), zero, 1.0 / scale)
    integers = target.skip(held.integers_start)
    _write_integers(e, held, columns, (inverse, offset), integers, code)
    return bits


def _put_half(numbers: Value, place: Pointer) -> Value:
    """Store numbers as f16; return them as they are stored, f32."""
    half = to_half(numbers.at_least(-LARGEST_SCALE).at_most(LARGEST_SCALE))
    place.of(I16)[Span(0, ROWS)] = half
    return from_half(half)


def _put_exponents(numbers: Value, place: Pointer) -> Value:
    """Store powers of two, and zeros, as their exponents; return them."""
    e = numbers.e
    exponents = e.bitcast(numbers, _BITS) >> F32_EXPONENT
    place.of(I8)[Span(0, ROWS)] = e.trunc(exponents, vector(I8, ROWS))
    return numbers


def _largest(e: Emitter, columns: Pointer) -> tuple[Value, Value]:
    """Return the number of largest magnitude in each row, the first of equals, and the magnitude's bits."""
    signed, largest = e.variable(constant(_WIDE, 0.0)), e.variable(constant(_BITS, 0))
    for number in _each_column(e, columns):
        size = number.magnitude_bits()
        is_larger = size > largest.value
        signed.value = e.select(is_larger, number, signed.value)
        largest.value = e.select(is_larger, size, largest.value)
    return signed.value, largest.value


def _largest_scale(_: Emitter, group: _Group) -> tuple[Value, None]:
    """`int8`: the largest magnitude becomes the largest integer."""
    return group.largest / float(INT8.limits[1]), None


def _power_scale(e: Emitter, group: _Group) -> tuple[Value, None]:
    """`mxfp4`: the least power of two by which the largest magnitude is at most `LARGEST_CODED`."""
    bits = e.bitcast(group.largest / LARGEST_CODED, _BITS)
    return e.bitcast((bits + _MANTISSA) & _INFINITY_BITS, _WIDE), None


def _best_scale(e: Emitter, group: _Group) -> tuple[Value, None]:
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
    for number in _each_column(e, columns):
        integer = _integer(INT4, number * inverse)
        fit.value = fit.value + number * integer
        norm.value = norm.value + integer * integer
    return fit.value, norm.value


def _best_line(e: Emitter, group: _Group) -> tuple[Value, Value]:
    """`int4-offset`: try ranges; return the scale and the offset that fit the best integers best."""
    zero = constant(_WIDE, 0.0)
    least, span = _range(e, group.columns)
    best_scale, best_offset = e.variable(zero), e.variable(0.0 - least)
    best_gain = e.variable(constant(_WIDE, -1.0))
    ranges = table(e, "ranges", TRIED_RANGES)
    with e.loop(0, len(TRIED_RANGES)) as index:
        steps = e.splat(ranges[index], ROWS)
        half_of_more = (steps - float(INT4_OFFSET.limits[1])) * 0.5
        line = _fit_line(e, group.columns, least, steps / span, half_of_more)
        is_better = line.is_one & (line.gain > best_gain.value)
        best_scale.value = e.select(is_better, line.scale, best_scale.value)
        best_offset.value = e.select(is_better, line.offset, best_offset.value)
        best_gain.value = e.select(is_better, line.gain, best_gain.value)
    is_flat = span < NOTHING
    scale = e.select(is_flat, zero, best_scale.value)
    return scale, e.select(is_flat, 0.0 - least, best_offset.value)


def _range(e: Emitter, columns: Pointer) -> tuple[Value, Value]:
    """Return the least number of each row, and how far the largest is above it."""
    least, most = (e.variable(constant(_WIDE, sign * math.inf)) for sign in (1, -1))
    for number in _each_column(e, columns):
        least.value = number.at_most(least.value)
        most.value = number.at_least(most.value)
    return least.value, most.value - least.value


@dataclass(frozen=True)
class _Line:
    """value = scale x integer - offset, fitted to a group. No line fits where all integers are the same."""

    scale: Value
    offset: Value
    gain: Value  # the larger, the smaller the squared error
    is_one: Value  # whether a line fits


def _fit_line(
    e: Emitter, columns: Pointer, least: Value, inverse: Value, half_of_more: Value
) -> _Line:
    """Return the line that fits best to the integers that this inverse scale gives."""
    count = float(GROUP)
    q_sum, qq_sum, u_sum, uq_sum = (e.variable(constant(_WIDE, 0.0)) for _ in range(4))
    for number in _each_column(e, columns):
        above = number - least
        integer = _integer(INT4_OFFSET, above * inverse - half_of_more)
        q_sum.value = q_sum.value + integer
        qq_sum.value = qq_sum.value + integer * integer
        u_sum.value = u_sum.value + above
        uq_sum.value = uq_sum.value + above * integer
    q, u = q_sum.value, u_sum.value
    norm = count * qq_sum.value - q * q
    fit = count * uq_sum.value - u * q
    scale = fit / norm
    start = (u - scale * q) / count
    return _Line(scale=scale, offset=0.0 - (least + start), gain=fit * scale, is_one=norm > 0.0)


_FIND: Mapping[PackedFormat, Callable[[Emitter, _Group], tuple[Value, Value | None]]] = {
    INT8: _largest_scale,
    INT4: _best_scale,
    INT4_OFFSET: _best_line,
    MXFP4: _power_scale,
}
"""What finds a group's scales, and its offsets if the format has any."""


def _integer(held: PackedFormat, steps: Value) -> Value:
    """Return the nearest integer that the format holds, as f32."""
    least, most = held.limits
    return steps.at_least(least).at_most(most).rounded()


def _emit_code(module: ir.Module, name: str, path: Path, held: PackedFormat) -> ir.Function:
    """Write a function that returns the codes, i32, of the nearest integers of 16 rows.

    Written into the kernel, it would be a function without calls that needs more registers than there are, which
    LLVM 20 refuses for Windows on arm64.
    """
    assert held.codes is not None
    kind = ir.FunctionType(_BITS, [_WIDE])
    e = Emitter(internal(ir.Function(module, kind, name)), path)
    (steps,) = e.arguments
    size = e.bitcast(steps.magnitude_bits(), _WIDE)
    code = e.value(constant(_BITS, 0))
    for middle, is_even in code_middles(held):
        is_above = size >= middle if is_even else size > middle
        code = code + e.zext(is_above, _BITS)
    is_negative = (steps < 0.0) & (code > 0)
    return e.end(code | e.zext(is_negative, _BITS) * (len(held.codes) // 2))


def _write_integers(
    e: Emitter,
    held: PackedFormat,
    columns: Pointer,
    line: tuple[Value, Value | None],
    integers: Pointer,
    code: ir.Function | None,
) -> None:
    """Store the integers plus their zero point; 32 bits hold four inputs of a row.

    Args:
        e: what the code is written with.
        held: the format.
        columns: the numbers, which codes replace.
        line: the inverse of the scales, and the offsets if the format has any.
        integers: where they go.
        code: what finds the codes, if the format has some.
    """
    inverse, offset = line

    codes = columns.of(_BITS)
    if code is not None:
        # In place of the numbers: written out, each call would have stack of its own on Windows.
        with e.loop(0, GROUP) as number:
            codes[number] = e.call(code, [columns[number] * inverse])

    def stored(number: int) -> Value:
        if code is not None:
            return codes[number]
        column = columns[number]
        steps = (column if offset is None else column + offset) * inverse
        return e.fptosi(_integer(held, steps) + float(held.zero_point), _BITS)

    def quad(number: int) -> Value:
        packed = e.value(constant(_BITS, 0))
        for place in range(QUAD):
            packed = packed | (stored(QUAD * number + place) << (8 * place))
        return packed

    half = GROUP // QUAD // 2
    if held.is_nibbles:
        vectors = [quad(number) | (quad(half + number) << 4) for number in range(half)]
    else:
        vectors = [quad(number) for number in range(2 * half)]
    for index, packed in enumerate(vectors):
        integers.of(_BITS)[index] = packed
