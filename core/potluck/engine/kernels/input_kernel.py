"""The kernels that quantise a product's input: int8 in groups of 32, each with its scale and sum.

What is quantised are numbers as they are, or normed, or gated, without the detour through memory.

scale = largest / 127; a group without a value above 1e-30 is zero. A NaN or an infinity in a group
makes its scale one, and so everything that is computed from that token: it shows.
"""

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import (
    EMIT_ACTIVATION,
    emit_bytes,
    emit_integers,
    emit_inverse_rms,
    emit_scale,
)
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    KIND_BF16,
    KIND_BYTES,
    KIND_F16,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.layout import (
    GROUP,
    RECORD_BYTES,
    RECORD_SUM,
    RECORD_VALUES,
    RECORD_WORTH,
    TILE,
    TILES,
)
from potluck.engine.kernels.paths import Path
from potluck.model.config import Activation

# source, its kind, numbers from one token to the next, width, tokens, records
QUANTISE = ir.FunctionType(VOID, [POINTER, I32, I64, I64, I64, POINTER])
# the same, and f32 weights of the norm and its epsilon
NORM_QUANTISE = ir.FunctionType(VOID, [*QUANTISE.args, POINTER, F32])

Numbers = Callable[[Value, Value | None], Value]
RowNumbers = Callable[[Emitter, Value, int], Numbers]
"""The numbers to quantise, of the row at this address, which are of this kind."""


def emit_quantise(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Numbers as they are."""

    def values_of(e: Emitter, row: Value, kind: int) -> Numbers:
        return partial(_fetch, e, row, kind)

    return _emit_rows(ir.Function(module, QUANTISE, name), path, values_of)


def emit_gated_quantise(
    module: ir.Module, name: str, path: Path, activation: Activation
) -> ir.Function:
    """activation(gate) x up; a row has first all gates, then all ups, and `width` is of one of them."""
    activate = EMIT_ACTIVATION[activation]
    function = ir.Function(module, QUANTISE, name)
    width = function.args[3]

    def values_of(e: Emitter, row: Value, kind: int) -> Numbers:
        ups = e.at(row, width, KIND_BYTES[kind])

        def values(index: Value, mask: Value | None) -> Value:
            gate = activate(e, _fetch(e, row, kind, index, mask))
            return e.fmul(gate, _fetch(e, ups, kind, index, mask))

        return values

    return _emit_rows(function, path, values_of)


def emit_norm_quantise(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Root mean square norm: x / sqrt(mean(x x) + epsilon) x weight."""
    function = ir.Function(module, NORM_QUANTISE, name)
    width, weight, epsilon = function.args[3], *function.args[-2:]

    def values_of(e: Emitter, row: Value, kind: int) -> Numbers:
        numbers = partial(_fetch, e, row, kind)
        inverse = e.splat(emit_inverse_rms(e, e.value(row).of(kind), width, GROUP, epsilon), GROUP)

        def values(index: Value, mask: Value | None) -> Value:
            normed = e.fmul(numbers(index, mask), inverse)
            return e.fmul(normed, _fetch(e, weight, KIND_F32, index, mask))

        return values

    return _emit_rows(function, path, values_of)


def _fetch(e: Emitter, row: Value, kind: int, index: Value, mask: Value | None) -> Value:
    return e.fetch_numbers(e.at(row, index, KIND_BYTES[kind]), kind, GROUP, mask)


def _emit_rows(function: ir.Function, path: Path, values_of: RowNumbers) -> ir.Function:
    """Records of each token's numbers, as `layout` says they lie."""
    write = _emit_record(function.module, f"{function.name}_record", path)
    e = Emitter(function, path)
    source, kind, stride, width, tokens, records = function.args[:6]
    groups = e.sdiv(e.add(width, constant(I64, GROUP - 1)), constant(I64, GROUP))

    def one_token(token: Value, record: Value, step: Value) -> None:
        def write_group(values: Numbers, index: Value, mask: Value | None) -> None:
            group = e.sdiv(index, constant(I64, GROUP))
            e.call(write, [values(index, mask), e.at(record, group, step)])

        with e.each_kind(kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds:
            for number in kinds:
                row = e.at(source, e.mul(token, stride), KIND_BYTES[number])
                e.vectors(width, GROUP, partial(write_group, values_of(e, row, number)))

    token = e.variable(constant(I64, 0))
    with e.loop(0, len(TILES)) as index:
        size = e.lshr(constant(I64, TILE), index)
        end = e.add(e.sub(tokens, size), constant(I64, 1))
        step = e.mul(size, constant(I64, RECORD_BYTES))
        with e.loop(token.value, end, size) as first:
            tile = e.at(records, e.mul(first, groups), RECORD_BYTES)
            with e.loop(0, size) as member:
                one_token(e.add(first, member), e.at(tile, member, RECORD_BYTES), step)
            token.value = e.add(first, size)
    e.ret_void()
    return function


def _emit_record(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Quantise 32 numbers into a record."""
    kind = ir.FunctionType(VOID, [vector(F32, GROUP), POINTER])
    function = internal(ir.Function(module, kind, name))
    e = Emitter(function, path)
    numbers, record = e.arguments
    largest = e.bitcast(e.reduce("umax", e.magnitude_bits(numbers)), F32)
    scale, inverse = emit_scale(e, largest)
    integers = emit_integers(e, numbers, inverse)
    e.put(scale, record)
    negative = e.sub(constant(I32, 0), e.reduce("add", integers))
    e.put(negative, e.at(record, RECORD_SUM))
    e.put(e.fmul(e.sitofp(negative, F32), scale), e.at(record, RECORD_WORTH))
    e.put(emit_bytes(e, integers), e.at(record, RECORD_VALUES))
    e.ret_void()
    return function
