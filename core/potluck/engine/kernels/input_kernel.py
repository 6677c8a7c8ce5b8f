"""The kernel that quantises a product's input: int8 in groups of 32, each with its scale and sum.

scale = largest / 127; a group without a value above 1e-30 is zero. A NaN or an infinity in a group
makes its scale one, and so everything that is computed from that token: it shows.
"""

from collections.abc import Callable

from llvmlite import ir

from potluck.engine.kernels.emit import (
    F32,
    I8,
    I32,
    I64,
    KIND_BF16,
    KIND_BYTES,
    KIND_F16,
    KIND_F32,
    POINTER,
    VOID,
    Emitter,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.layout import (
    GROUP,
    LARGEST,
    NOTHING,
    RECORD_BYTES,
    RECORD_SUM,
    RECORD_VALUES,
    TILE,
    TILES,
)
from potluck.engine.kernels.paths import Path

# source, its kind, numbers from one token to the next, width, tokens, records
QUANTISE = ir.FunctionType(VOID, [POINTER, I32, I64, I64, I64, POINTER])

Values = Callable[[Value, Value | None], Value]
"""The 32 numbers from this index on, f32; with a mask, those, and else zeros."""

WriteRecord = Callable[[Value, Value], None]
"""Quantise 32 numbers and write their record to this address."""


def emit_quantise(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Records of each token's numbers, as `layout` says they lie."""
    record_function = emit_record(module, f"{name}_record", path)
    function = ir.Function(module, QUANTISE, name)
    e = Emitter(function, path)
    source, kind, stride, width, tokens, records = function.args
    groups = e.sdiv(e.add(width, constant(I64, GROUP - 1)), constant(I64, GROUP))

    def write(numbers: Value, record: Value) -> None:
        e.call(record_function, [numbers, record])

    def one_token(token: Value, record: Value, step: Value) -> None:
        with e.each_kind(kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds:
            for number in kinds:
                row = e.at(source, e.mul(token, stride), KIND_BYTES[number])
                emit_groups(e, _numbers_of(e, row, number), width, record, step, write)

    token = e.variable(constant(I64, 0))
    with e.loop(0, len(TILES)) as index:
        size = e.lshr(constant(I64, TILE), index)
        end = e.add(e.sub(tokens, size), constant(I64, 1))
        with e.loop(token.value, end, size) as first:
            tile = e.at(records, e.mul(first, groups), RECORD_BYTES)
            with e.loop(0, size) as member:
                record = e.at(tile, member, RECORD_BYTES)
                one_token(e.add(first, member), record, e.mul(size, constant(I64, RECORD_BYTES)))
            token.value = e.add(first, size)
    e.ret_void()
    return function


def _numbers_of(e: Emitter, row: Value, kind: int) -> Values:
    def values(index: Value, mask: Value | None) -> Value:
        return e.fetch_numbers(e.at(row, index, KIND_BYTES[kind]), kind, GROUP, mask)

    return values


def emit_groups(
    e: Emitter,
    values: Values,
    width: Value,
    record: Value,
    step: Value,
    write: WriteRecord,
) -> None:
    """Write the records of one token, `step` bytes apart; the last group may be cut off."""
    whole = e.sdiv(width, constant(I64, GROUP))
    with e.loop(0, whole) as group:
        write(values(e.mul(group, constant(I64, GROUP)), None), e.at(record, group, step))
    left = e.srem(width, constant(I64, GROUP))
    with e.if_then(e.icmp_signed(">", left, constant(I64, 0))):
        numbers = values(e.mul(whole, constant(I64, GROUP)), e.first_lanes(left, GROUP))
        write(numbers, e.at(record, whole, step))


def emit_record(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Quantise 32 numbers into a record."""
    kind = ir.FunctionType(VOID, [vector(F32, GROUP), POINTER])
    function = internal(ir.Function(module, kind, name))
    numbers, record = function.args
    e = Emitter(function, path)
    largest = e.bitcast(e.reduce("umax", e.magnitude_bits(numbers)), F32)
    limit, zero = constant(F32, float(LARGEST)), constant(F32, 0.0)
    is_nothing = e.fcmp_ordered("<", largest, constant(F32, NOTHING))
    inverse = e.select(is_nothing, zero, e.fdiv(limit, largest))
    scale = e.select(is_nothing, zero, e.fdiv(largest, limit))
    scaled = e.fmul(numbers, e.splat(inverse, GROUP))
    # The limits change no finite number; a NaN would be an integer of the processor's liking.
    scaled = e.limit(scaled, -LARGEST, LARGEST)
    integers = e.fptosi(e.rounded(scaled), vector(I32, GROUP))
    e.put(scale, record)
    negative = e.sub(constant(I32, 0), e.reduce("add", integers))
    e.put(negative, e.at(record, RECORD_SUM))
    e.put(e.trunc(integers, vector(I8, GROUP)), e.at(record, RECORD_VALUES))
    e.ret_void()
    return function
