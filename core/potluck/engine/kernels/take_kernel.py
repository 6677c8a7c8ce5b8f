"""The kernel of an embedding: one row of a packed matrix, in f32."""

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    VOID,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.layout import (
    GROUP,
    QUAD,
    ROWS,
    SCALES_BYTES,
    VECTOR,
    ZERO_POINT,
    group_bytes,
    has_offsets,
    payload_start,
)
from potluck.engine.kernels.paths import Path
from potluck.model.schemes import INTEGER_BITS

# weights, groups, row, what each number is multiplied with, out: 32 f32 for each group
TAKE = ir.FunctionType(VOID, [POINTER, I64, I64, F32, POINTER])


def emit_take(module: ir.Module, name: str, path: Path, bits: int) -> ir.Function:
    """out[k] = W[row, k] x multiplier, for all groups of inputs."""
    function = ir.Function(module, TAKE, name)
    weights, groups, row, multiplier, out = function.args
    e = Emitter(function, path)
    block, lane = e.sdiv(row, constant(I64, ROWS)), e.srem(row, constant(I64, ROWS))
    factor = e.splat(multiplier, QUAD)
    with e.loop(0, groups) as group:
        index = e.add(e.mul(block, groups), group)
        here = e.at(weights, index, group_bytes(bits))
        scale = _own(e, here, lane)
        offset = _own(e, e.at(here, SCALES_BYTES), lane) if has_offsets(bits) else None
        payload = e.at(e.at(here, payload_start(bits)), lane, QUAD)
        numbers = e.at(out, group, 4 * GROUP)
        for vector_ in range((group_bytes(bits) - payload_start(bits)) // VECTOR):
            raw = e.fetch(e.at(payload, VECTOR * vector_), vector(I8, QUAD))
            for quad, integers in _unpacked(e, raw, vector_, bits):
                value = e.fmul(integers, scale)
                if offset is not None:
                    value = e.fsub(value, offset)
                e.put(e.fmul(value, factor), e.at(numbers, 4 * QUAD * quad))
    e.ret_void()
    return function


def _own(e: Emitter, halves: Value, lane: Value) -> Value:
    """The number of one row among 16 of f16, in each lane."""
    numbers = e.from_half(e.bitcast(e.fetch(halves, vector(I16, ROWS)), vector(F16, ROWS)))
    return e.splat(e.extract_element(numbers, e.trunc(lane, I32)), QUAD)


def _unpacked(e: Emitter, raw: Value, vector_: int, bits: int) -> list[tuple[int, Value]]:
    """Four neighbouring weights, or eight of 4 bits, each four with the number of their inputs."""
    half = GROUP // QUAD // 2
    parts = [(vector_, raw)]
    if INTEGER_BITS[bits] == 4:
        four = constant(raw.type, 4)
        parts = [
            (vector_, e.and_(raw, constant(raw.type, 15))),
            (half + vector_, e.lshr(raw, four)),
        ]
    wide = vector(I32, QUAD)
    zero_point = constant(wide, ZERO_POINT[bits])
    return [
        (quad, e.sitofp(e.sub(e.zext(part, wide), zero_point), vector(F32, QUAD)))
        for quad, part in parts
    ]
