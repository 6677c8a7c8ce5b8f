"""The kernel of an embedding lookup: one row of a packed matrix, in f32."""

from llvmlite import ir

from potluck.engine.kernels.block_kernel import emit_integers, emit_offsets, emit_scales
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import F32, I32, I64, KIND_F32, POINTER, VOID, vector
from potluck.engine.kernels.layout import GROUP, QUAD, ROWS
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.values import Span, Value
from potluck.model.formats import PackedFormat

# weights, groups, row, what each number is multiplied with, out: 32 f32 for each group
LOOKUP = ir.FunctionType(VOID, [POINTER, I64, I64, F32, POINTER])


def emit_lookup(
    module: ir.Module, name: str, path: Path, weight_format: PackedFormat
) -> ir.Function:
    """out[k] = W[row, k] x multiplier, for all groups of inputs."""
    e = Emitter(ir.Function(module, LOOKUP, name), path)
    weights, groups, row, multiplier, out = e.arguments
    block, lane, out = row // ROWS, row % ROWS, out.of(KIND_F32)
    wide = vector(I32, QUAD)
    with e.loop(0, groups) as group:
        here = weights.skip(block * groups + group, weight_format.block_bytes)
        scale = _of_row(e, emit_scales(e, here), lane)
        offsets = emit_offsets(e, weight_format, here)
        offset = None if offsets is None else _of_row(e, offsets, lane)
        own = here.skip(weight_format.integers_start).skip(lane, QUAD)
        numbers = out + group * GROUP
        for quad, unsigned in emit_integers(e, weight_format, own, 1):
            integers = e.zext(unsigned, wide) - weight_format.zero_point
            value = e.sitofp(integers, vector(F32, QUAD)) * scale
            if offset is not None:
                value = value - offset
            numbers[Span(e.index(quad * QUAD), QUAD)] = value * multiplier
    e.ret_void()
    return e.function


def _of_row(e: Emitter, numbers: Value, lane: Value) -> Value:
    """The number of one row among those of 16."""
    return e.extract_element(numbers, e.trunc(lane, I32))
