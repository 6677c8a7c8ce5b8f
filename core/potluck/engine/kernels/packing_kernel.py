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

All arithmetic is exact IEEE 754 in a fixed order: every processor, and the reference in torch, packs
the same weights into the same bytes. The kernel refuses what is not finite.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    KIND_BF16,
    KIND_BYTES,
    KIND_F16,
    KIND_F32,
    POINTER,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST_SCALE,
    NOTHING,
    QUAD,
    ROWS,
    TRIED_RANGES,
    TRIED_STEPS,
    VECTOR,
)
from potluck.engine.kernels.paths import Path
from potluck.model.formats import INT4, INT4_OFFSET, INT8, PackedFormat

# source, its kind, numbers from one row to the next, groups, blocks, packed → 1 if all are finite, else 0
PACK = ir.FunctionType(I32, [POINTER, I32, I64, I64, I64, POINTER])

_WIDE = vector(F32, ROWS)
_BITS = vector(I32, ROWS)


def emit_pack(module: ir.Module, name: str, path: Path, weight_format: PackedFormat) -> ir.Function:
    """Pack whole blocks of 16 rows and whole groups of 32 inputs."""
    function = ir.Function(module, PACK, name)
    e = Emitter(function, path)
    source, kind, stride, groups, blocks, packed = function.args
    columns = e.stack(_WIDE, GROUP)
    highest = e.variable(constant(_BITS, 0))  # magnitude of any number, as bits
    with e.loop(0, blocks) as block:
        start = e.mul(e.mul(block, constant(I64, ROWS)), stride)
        with e.loop(0, groups) as group:
            first = e.add(start, e.mul(group, constant(I64, GROUP)))
            with e.loop(0, GROUP, ROWS) as column:
                square = e.at(columns, column, 4 * ROWS)
                _read_square(e, source, kind, stride, e.add(first, column), square)
            target = e.at(packed, e.add(e.mul(block, groups), group), weight_format.block_bytes)
            largest = _pack_group(e, weight_format, columns, target)
            more = e.icmp_unsigned(">", largest, highest.value)
            highest.value = e.select(more, largest, highest.value)
    infinite = constant(I32, 0x7F800000)
    is_finite = e.icmp_unsigned("<", e.reduce("umax", highest.value), infinite)
    e.ret(e.zext(is_finite, I32))
    return function


def _column(e: Emitter, columns: Value, index: Value | int) -> Value:
    return e.fetch(e.at(columns, index, 4 * ROWS), _WIDE)


def _each_column(e: Emitter, columns: Value) -> Iterator[Value]:
    """Write code for four columns, which runs for all of them in order.

    Written for all, LLVM would keep them in so many registers that most end up on the stack.
    """
    with e.loop(0, GROUP, QUAD) as first:
        for place in range(QUAD):
            yield _column(e, columns, e.add(first, constant(I64, place)))


def _read_square(
    e: Emitter, source: Value, kind: Value, stride: Value, first: Value, columns: Value
) -> None:
    """16 rows x 16 inputs, from the number `first` on, as 16 vectors of 16 rows."""
    with (
        e.loop(0, ROWS) as row,
        e.each_kind(kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds,
    ):
        for number in kinds:
            index = e.add(first, e.mul(row, stride))
            numbers = e.fetch_numbers(e.at(source, index, KIND_BYTES[number]), number, ROWS)
            e.put(numbers, e.at(columns, row, 4 * ROWS))
    rows = [_column(e, columns, row) for row in range(ROWS)]
    for number, column in enumerate(e.transpose(rows)):
        e.put(column, e.at(columns, number, 4 * ROWS))


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The numbers of a group, of which the 16 rows are lanes."""

    columns: Value  # where they stand
    signed: Value  # of each row the number of largest magnitude, the first of equals
    largest: Value  # its magnitude, as bits


def _pack_group(e: Emitter, held: PackedFormat, columns: Value, target: Value) -> Value:
    """Write 16 scales, offsets if the format has them, and the integers.

    Returns:
        The largest magnitudes, as bits.
    """
    signed, largest = _largest(e, columns)
    is_nothing = e.fcmp_ordered("<", e.bitcast(largest, _WIDE), constant(_WIDE, NOTHING))
    zero = constant(_WIDE, 0.0)
    group = _Group(columns=columns, signed=signed, largest=largest)
    scale, offset = _FIND[held](e, group)
    if offset is not None and held.offsets_start is not None:
        offset = _put_half(e, offset, e.at(target, held.offsets_start))
    scale = _put_half(e, e.select(is_nothing, zero, scale), target)
    is_zero = e.fcmp_ordered("==", scale, zero)
    inverse = e.select(is_zero, zero, e.fdiv(constant(_WIDE, 1.0), scale))
    _write_integers(e, held, columns, (inverse, offset), e.at(target, held.integers_start))
    return largest


def _put_half(e: Emitter, numbers: Value, address: Value) -> Value:
    """Write numbers as f16; returns what is written, as f32."""
    half = e.to_half(e.limit(numbers, -LARGEST_SCALE, LARGEST_SCALE))
    e.put(half, address)
    return e.from_half(e.bitcast(half, vector(ir.HalfType(), ROWS)))


def _largest(e: Emitter, columns: Value) -> tuple[Value, Value]:
    """The number of largest magnitude in each row, the first of equals, and the magnitude's bits."""
    signed, largest = e.variable(constant(_WIDE, 0.0)), e.variable(constant(_BITS, 0))
    for number in _each_column(e, columns):
        size = e.magnitude_bits(number)
        is_larger = e.icmp_unsigned(">", size, largest.value)
        signed.value = e.select(is_larger, number, signed.value)
        largest.value = e.select(is_larger, size, largest.value)
    return signed.value, largest.value


def _largest_scale(e: Emitter, group: _Group) -> tuple[Value, None]:
    """`int8`: the largest magnitude becomes the largest integer."""
    most = float(INT8.limits[1])
    return e.fdiv(e.bitcast(group.largest, _WIDE), constant(_WIDE, most)), None


def _best_scale(e: Emitter, group: _Group) -> tuple[Value, None]:
    """`int4`: try scales; return the scale that fits the best integers best."""
    zero = constant(_WIDE, 0.0)
    best_scale, best_gain = e.variable(zero), e.variable(constant(_WIDE, -1.0))
    inverse_of_one = e.fdiv(constant(_WIDE, -1.0), group.signed)  # the largest maps to -1
    steps = e.table("steps", TRIED_STEPS)
    with e.loop(0, constant(I64, len(TRIED_STEPS))) as index:
        step = e.splat(e.fetch(e.at(steps, index, 4), F32), ROWS)
        fit, norm = _fit(e, group.columns, e.fmul(inverse_of_one, step))
        has_any = e.fcmp_ordered(">", norm, zero)
        scale = e.fdiv(fit, norm)
        gain = e.fmul(fit, scale)
        is_better = e.and_(has_any, e.fcmp_ordered(">", gain, best_gain.value))
        best_scale.value = e.select(is_better, scale, best_scale.value)
        best_gain.value = e.select(is_better, gain, best_gain.value)
    return best_scale.value, None


def _fit(e: Emitter, columns: Value, inverse: Value) -> tuple[Value, Value]:
    """Σ w q and Σ q q of the integers q that this inverse scale gives."""
    zero = constant(_WIDE, 0.0)
    fit, norm = e.variable(zero), e.variable(zero)
    for number in _each_column(e, columns):
        integer = _integer(e, INT4, e.fmul(number, inverse))
        fit.value = e.fadd(fit.value, e.fmul(number, integer))
        norm.value = e.fadd(norm.value, e.fmul(integer, integer))
    return fit.value, norm.value


def _best_line(e: Emitter, group: _Group) -> tuple[Value, Value]:
    """`int4-offset`: try ranges; return the scale and the offset that fit the best integers best."""
    zero, columns = constant(_WIDE, 0.0), group.columns
    most = float(INT4_OFFSET.limits[1])
    least, span = _range(e, columns)
    best_scale, best_offset = e.variable(zero), e.variable(e.fsub(zero, least))
    best_gain = e.variable(constant(_WIDE, -1.0))
    ranges = e.table("ranges", TRIED_RANGES)
    with e.loop(0, constant(I64, len(TRIED_RANGES))) as index:
        steps = e.splat(e.fetch(e.at(ranges, index, 4), F32), ROWS)
        half_of_more = e.fmul(e.fsub(steps, constant(_WIDE, most)), constant(_WIDE, 0.5))
        line = _fit_line(e, columns, least, e.fdiv(steps, span), half_of_more)
        is_better = e.and_(line.is_one, e.fcmp_ordered(">", line.gain, best_gain.value))
        best_scale.value = e.select(is_better, line.scale, best_scale.value)
        best_offset.value = e.select(is_better, line.offset, best_offset.value)
        best_gain.value = e.select(is_better, line.gain, best_gain.value)
    is_flat = e.fcmp_ordered("<", span, constant(_WIDE, NOTHING))
    scale = e.select(is_flat, zero, best_scale.value)
    return scale, e.select(is_flat, e.fsub(zero, least), best_offset.value)


def _range(e: Emitter, columns: Value) -> tuple[Value, Value]:
    """The least number of each row, and how far the largest is above it."""
    infinite = constant(_WIDE, float("inf"))
    least, most = e.variable(infinite), e.variable(e.fsub(constant(_WIDE, 0.0), infinite))
    for number in _each_column(e, columns):
        least.value = e.select(e.fcmp_ordered("<", number, least.value), number, least.value)
        most.value = e.select(e.fcmp_ordered(">", number, most.value), number, most.value)
    return least.value, e.fsub(most.value, least.value)


@dataclass(frozen=True)
class _Line:
    """value = scale x integer - offset, fitted to a group; there is none where all integers are the same."""

    scale: Value
    offset: Value
    gain: Value  # the larger, the smaller the squared error
    is_one: Value  # whether there is one


def _fit_line(
    e: Emitter, columns: Value, least: Value, inverse: Value, half_of_more: Value
) -> _Line:
    """The line that fits the integers best which this inverse scale gives."""
    zero, count = constant(_WIDE, 0.0), constant(_WIDE, float(GROUP))
    q_sum, qq_sum, u_sum, uq_sum = (e.variable(zero) for _ in range(4))
    for number in _each_column(e, columns):
        above = e.fsub(number, least)
        integer = _integer(e, INT4_OFFSET, e.fsub(e.fmul(above, inverse), half_of_more))
        q_sum.value = e.fadd(q_sum.value, integer)
        qq_sum.value = e.fadd(qq_sum.value, e.fmul(integer, integer))
        u_sum.value = e.fadd(u_sum.value, above)
        uq_sum.value = e.fadd(uq_sum.value, e.fmul(above, integer))
    norm = e.fsub(e.fmul(count, qq_sum.value), e.fmul(q_sum.value, q_sum.value))
    fit = e.fsub(e.fmul(count, uq_sum.value), e.fmul(u_sum.value, q_sum.value))
    scale = e.fdiv(fit, norm)
    start = e.fdiv(e.fsub(u_sum.value, e.fmul(scale, q_sum.value)), count)
    return _Line(
        scale=scale,
        offset=e.fsub(zero, e.fadd(least, start)),
        gain=e.fmul(fit, scale),
        is_one=e.fcmp_ordered(">", norm, zero),
    )


_FIND: Mapping[PackedFormat, Callable[[Emitter, _Group], tuple[Value, Value | None]]] = {
    INT8: _largest_scale,
    INT4: _best_scale,
    INT4_OFFSET: _best_line,
}
"""What finds a group's scales, and its offsets if the format has any."""


def _integer(e: Emitter, held: PackedFormat, steps: Value) -> Value:
    """The nearest integer that the format holds, as f32."""
    return e.rounded(e.limit(steps, *held.limits))


def _write_integers(
    e: Emitter,
    held: PackedFormat,
    columns: Value,
    line: tuple[Value, Value | None],
    integers: Value,
) -> None:
    """The integers plus their zero point, four inputs to each 32 bits of a row.

    Args:
        e: what the code is written with.
        held: the format.
        columns: the numbers.
        line: the inverse of the scales, and the offsets if the format has any.
        integers: where they go.
    """
    inverse, offset = line

    def quad(number: int) -> Value:
        packed = constant(_BITS, 0)
        for place in range(QUAD):
            column = _column(e, columns, QUAD * number + place)
            above = column if offset is None else e.fadd(column, offset)
            integer = _integer(e, held, e.fmul(above, inverse))
            unsigned = e.fptosi(e.fadd(integer, constant(_WIDE, held.zero_point)), _BITS)
            packed = e.or_(packed, e.shl(unsigned, constant(_BITS, 8 * place)))
        return packed

    quads = GROUP // QUAD
    if held.is_nibbles:
        half = quads // 2
        vectors = [
            e.or_(quad(number), e.shl(quad(half + number), constant(_BITS, 4)))
            for number in range(half)
        ]
    else:
        vectors = [quad(number) for number in range(quads)]
    for index, packed in enumerate(vectors):
        e.put(packed, e.at(integers, index, VECTOR))
