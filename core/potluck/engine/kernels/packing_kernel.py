"""The kernel that packs weights: finds each group's scale and writes the integers as products read them.

A block of 16 rows x 32 inputs is read row by row and transposed, so that the 16 rows are the lanes of
vectors and all 16 scales are found at once. With 8 bits the scale is largest / 127. With 4 bits, integers
from -8 to 7, several scales that map the largest number near -8 are tried; of each one's integers q, the
scale that fits best is Σ w q / Σ q q, the squared error left is Σ w w - (Σ w q)² / Σ q q, and the
scale with the least is taken. With offsets, several ranges that map the least number near 0 and the largest
near 15 are tried, and of each one's integers scale and offset are those of the line that fits best: with
u = w - least, the scale is (32 Σ u q - Σ u Σ q) / (32 Σ q q - (Σ q)²).

All arithmetic is exact IEEE 754 in a fixed order: every processor, and the reference in torch, packs
the same weights into the same bytes. What is not finite cannot be packed: the kernel says so.
"""

from collections.abc import Iterator
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
    LARGEST,
    LARGEST_SCALE,
    LIMITS,
    MOST_STEPS,
    NOTHING,
    QUAD,
    ROWS,
    SCALES_BYTES,
    TRIED_RANGES,
    TRIED_STEPS,
    VECTOR,
    ZERO_POINT,
    group_bytes,
    has_offsets,
    payload_start,
)
from potluck.engine.kernels.paths import Path
from potluck.model.schemes import INTEGER_BITS, OFFSET_BITS

# source, its kind, numbers from one row to the next, groups, blocks, packed → 1 if all was finite
PACK = ir.FunctionType(I32, [POINTER, I32, I64, I64, I64, POINTER])

_WIDE = vector(F32, ROWS)
_BITS = vector(I32, ROWS)


def emit_pack(module: ir.Module, name: str, path: Path, bits: int) -> ir.Function:
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
            target = e.at(packed, e.add(e.mul(block, groups), group), group_bytes(bits))
            largest = _pack_group(e, bits, columns, target)
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


def _pack_group(e: Emitter, bits: int, columns: Value, target: Value) -> Value:
    """Write 16 scales, offsets if there are any, and the integers.

    Returns:
        The largest magnitudes, as bits.
    """
    signed, largest = _largest(e, columns)
    is_nothing = e.fcmp_ordered("<", e.bitcast(largest, _WIDE), constant(_WIDE, NOTHING))
    zero = constant(_WIDE, 0.0)
    offset = None
    if has_offsets(bits):
        scale, offset = _best_line(e, columns)
        offset = _put_half(e, offset, e.at(target, SCALES_BYTES))
    elif bits == 8:
        scale = e.fdiv(e.bitcast(largest, _WIDE), constant(_WIDE, float(LARGEST)))
    else:
        scale = _best_scale(e, columns, signed)
    scale = _put_half(e, e.select(is_nothing, zero, scale), target)
    is_zero = e.fcmp_ordered("==", scale, zero)
    inverse = e.select(is_zero, zero, e.fdiv(constant(_WIDE, 1.0), scale))
    _write_integers(e, bits, columns, (inverse, offset), e.at(target, payload_start(bits)))
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


def _best_scale(e: Emitter, columns: Value, signed: Value) -> Value:
    """4 bits: try scales; of the one whose integers fit best, what fits them best."""
    zero = constant(_WIDE, 0.0)
    best_scale, best_gain = e.variable(zero), e.variable(constant(_WIDE, -1.0))
    inverse_of_one = e.fdiv(constant(_WIDE, -1.0), signed)  # the largest maps to -1
    steps = e.table("steps", TRIED_STEPS)
    with e.loop(0, constant(I64, len(TRIED_STEPS))) as index:
        step = e.splat(e.fetch(e.at(steps, index, 4), F32), ROWS)
        fit, norm = _fit(e, columns, e.fmul(inverse_of_one, step))
        has_any = e.fcmp_ordered(">", norm, zero)
        scale = e.fdiv(fit, norm)
        gain = e.fmul(fit, scale)
        is_better = e.and_(has_any, e.fcmp_ordered(">", gain, best_gain.value))
        best_scale.value = e.select(is_better, scale, best_scale.value)
        best_gain.value = e.select(is_better, gain, best_gain.value)
    return best_scale.value


def _fit(e: Emitter, columns: Value, inverse: Value) -> tuple[Value, Value]:
    """Σ w q and Σ q q of the integers q that this inverse scale gives."""
    zero = constant(_WIDE, 0.0)
    fit, norm = e.variable(zero), e.variable(zero)
    for number in _each_column(e, columns):
        integer = _integer(e, 4, e.fmul(number, inverse))
        fit.value = e.fadd(fit.value, e.fmul(number, integer))
        norm.value = e.fadd(norm.value, e.fmul(integer, integer))
    return fit.value, norm.value


def _best_line(e: Emitter, columns: Value) -> tuple[Value, Value]:
    """With offsets: try ranges; of the one whose integers fit best, the scale and offset that fit them best."""
    zero = constant(_WIDE, 0.0)
    least, span = _range(e, columns)
    best_scale, best_offset = e.variable(zero), e.variable(e.fsub(zero, least))
    best_gain = e.variable(constant(_WIDE, -1.0))
    ranges = e.table("ranges", TRIED_RANGES)
    with e.loop(0, constant(I64, len(TRIED_RANGES))) as index:
        steps = e.splat(e.fetch(e.at(ranges, index, 4), F32), ROWS)
        half_of_more = e.fmul(e.fsub(steps, constant(_WIDE, MOST_STEPS)), constant(_WIDE, 0.5))
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
    """value = scale x integer - offset; if it is one, which it is not where all integers are the same."""

    scale: Value
    offset: Value
    gain: Value  # the more, the smaller the squared error
    is_one: Value


def _fit_line(
    e: Emitter, columns: Value, least: Value, inverse: Value, half_of_more: Value
) -> _Line:
    """What fits best the integers that this inverse scale gives."""
    zero, count = constant(_WIDE, 0.0), constant(_WIDE, float(GROUP))
    q_sum, qq_sum, u_sum, uq_sum = (e.variable(zero) for _ in range(4))
    for number in _each_column(e, columns):
        above = e.fsub(number, least)
        integer = _integer(e, OFFSET_BITS, e.fsub(e.fmul(above, inverse), half_of_more))
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


def _integer(e: Emitter, bits: int, steps: Value) -> Value:
    """The nearest integer, as f32. 8 bits leave -128 out, so that a sign can be moved."""
    return e.rounded(e.limit(steps, *LIMITS[bits]))


def _write_integers(
    e: Emitter, bits: int, columns: Value, line: tuple[Value, Value | None], payload: Value
) -> None:
    """The integers plus their zero point, four inputs to each 32 bits of a row.

    Args:
        e: what they are written with.
        bits: of the form.
        columns: the numbers.
        line: the inverse of their scale, and their offset, if the form has any.
        payload: where they go.
    """
    inverse, offset = line

    def quad(number: int) -> Value:
        packed = constant(_BITS, 0)
        for place in range(QUAD):
            column = _column(e, columns, QUAD * number + place)
            above = column if offset is None else e.fadd(column, offset)
            integer = _integer(e, bits, e.fmul(above, inverse))
            unsigned = e.fptosi(e.fadd(integer, constant(_WIDE, ZERO_POINT[bits])), _BITS)
            packed = e.or_(packed, e.shl(unsigned, constant(_BITS, 8 * place)))
        return packed

    quads = GROUP // QUAD
    if INTEGER_BITS[bits] == 8:
        vectors = [quad(number) for number in range(quads)]
    else:
        half = quads // 2
        vectors = [
            e.or_(quad(number), e.shl(quad(half + number), constant(_BITS, 4)))
            for number in range(half)
        ]
    for index, packed in enumerate(vectors):
        e.put(packed, e.at(payload, index, VECTOR))
