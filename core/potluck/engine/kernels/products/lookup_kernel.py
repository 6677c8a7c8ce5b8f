"""The kernel of an embedding lookup: one row of a packed matrix, in f32."""

from llvmlite import ir

from potluck.engine.kernels.layout import GROUP, QUAD, ROWS
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.block_kernel import BlockRow
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I32, I64, KIND_F32, POINTER, VOID, vector
from potluck.engine.kernels.writing.memory import Span
from potluck.model.formats import PackedFormat

# Weights, groups of inputs, row, multiplier, out: 32 f32 for each group.
LOOKUP = ir.FunctionType(VOID, [POINTER, I64, I64, F32, POINTER])


def emit_lookup(
    module: ir.Module, name: str, path: Path, weight_format: PackedFormat
) -> ir.Function:
    """out[k] = W[row, k] x multiplier, for all groups of inputs."""
    e = Emitter(ir.Function(module, LOOKUP, name), path)
    weights, groups, row, multiplier, out = e.arguments
    block, member, out = row // ROWS, row % ROWS, out.of(KIND_F32)
    lane = e.trunc(member, I32)
    wide = vector(I32, QUAD)
    with BlockRow.of(weight_format, weights, block, groups).each() as (group, here):
        scale, offsets = here.scales.lane(lane), here.offsets
        offset = None if offsets is None else offsets.lane(lane)
        numbers = out + group * GROUP
        for quad, unsigned in here.integers(member, 1):
            integers = e.zext(unsigned, wide) - weight_format.zero_point
            value = e.sitofp(integers, vector(F32, QUAD)) * scale
            if offset is not None:
                value = value - offset
            numbers[Span(quad * QUAD, QUAD)] = value * multiplier
    return e.end()
