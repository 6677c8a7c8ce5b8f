"""The kernel of an embedding lookup: one row of a packed matrix, in f32."""

from llvmlite import ir

from potluck.engine.kernels.block_kernel import emit_integers, emit_offsets, emit_scales
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    POINTER,
    VOID,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.layout import GROUP, QUAD, ROWS
from potluck.engine.kernels.paths import Path
from potluck.model.formats import PackedFormat

# weights, groups, row, what each number is multiplied with, out: 32 f32 for each group
LOOKUP = ir.FunctionType(VOID, [POINTER, I64, I64, F32, POINTER])


def emit_lookup(
    module: ir.Module, name: str, path: Path, weight_format: PackedFormat
) -> ir.Function:
    """out[k] = W[row, k] x multiplier, for all groups of inputs."""
    function = ir.Function(module, LOOKUP, name)
    weights, groups, row, multiplier, out = function.args
    e = Emitter(function, path)
    block, lane = e.sdiv(row, constant(I64, ROWS)), e.srem(row, constant(I64, ROWS))
    factor = e.splat(multiplier, QUAD)
    wide = vector(I32, QUAD)
    zero_point = constant(wide, weight_format.zero_point)
    with e.loop(0, groups) as group:
        index = e.add(e.mul(block, groups), group)
        here = e.at(weights, index, weight_format.block_bytes)
        scale = _of_row(e, emit_scales(e, here), lane)
        offsets = emit_offsets(e, weight_format, here)
        offset = None if offsets is None else _of_row(e, offsets, lane)
        own = e.at(e.at(here, weight_format.integers_start), lane, QUAD)
        numbers = e.at(out, group, 4 * GROUP)
        for quad, unsigned in emit_integers(e, weight_format, own, 1):
            integers = e.sitofp(e.sub(e.zext(unsigned, wide), zero_point), vector(F32, QUAD))
            value = e.fmul(integers, scale)
            if offset is not None:
                value = e.fsub(value, offset)
            e.put(e.fmul(value, factor), e.at(numbers, 4 * QUAD * quad))
    e.ret_void()
    return function


def _of_row(e: Emitter, numbers: Value, lane: Value) -> Value:
    """The number of one row among those of 16, in each lane."""
    return e.splat(e.extract_element(numbers, e.trunc(lane, I32)), QUAD)
