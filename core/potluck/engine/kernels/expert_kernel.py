"""The kernel of a mixture of experts: one token through those that the router chose, in one call.

    out = Σ weight x down(gated(gate_up(x)))

for each of them, in the order in which they are given. Step and experts are records of 8 bytes a field.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.input_kernel import emit_gated_quantise, emit_quantise
from potluck.engine.kernels.ir_types import F32, I32, I64, KIND_F32, POINTER, VOID, Value, constant
from potluck.engine.kernels.layout import blocks_of
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import emit_run, emit_shared
from potluck.engine.kernels.product_kernel import emit_product_piece, product_arguments
from potluck.engine.kernels.residual_kernel import emit_add
from potluck.model.config import Activation

# `records` are of the input, `gated` of what an expert's last product reads.
EXPERTS_FIELDS = ("input", "records", "wide", "gated", "added", "out", "weights", "job", "shares")
EXPERT_FIELDS = ("gate_up", "down")

# step, the experts' records one after the other, their number; `out` has to be zero
EXPERTS = ir.FunctionType(VOID, [POINTER, POINTER, I64])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """What a kernel of experts is written for."""

    hidden: int
    intermediate: int
    activation: Activation
    gate_up_bits: int
    down_bits: int


def emit_experts(module: ir.Module, name: str, path: Path, shape: ExpertShape) -> ir.Function:
    """One token through some experts."""
    products = {
        bits: emit_product_piece(module, f"{name}_product{bits}", path, bits, tiles=(1,))
        for bits in sorted({shape.gate_up_bits, shape.down_bits})
    }
    quantise = emit_quantise(module, f"{name}_quantise", path)
    gated = emit_gated_quantise(module, f"{name}_gated", path, shape.activation)
    add = emit_add(module, f"{name}_add", path)
    run = emit_run(module, f"{name}_run", path)
    function = ir.Function(module, EXPERTS, name)
    step, experts, count = function.args
    e = Emitter(function, path)
    given = {
        field: e.fetch(e.at(step, 8 * index), I64 if field == "shares" else POINTER)
        for index, field in enumerate(EXPERTS_FIELDS)
    }
    pool = (run, given["job"], given["shares"])
    wide, nothing = 2 * shape.intermediate, ir.Constant(POINTER, None)

    def multiply(matrix: Value, bits: int, inputs: str, out: str, rows: int, width: int) -> None:
        arguments = product_arguments(matrix, given[inputs], given[out], nothing, rows, width)
        emit_shared(e, pool, products[bits], arguments, blocks_of(rows))

    def quantise_into(kernel: ir.Function, source: str, width: int, records: str) -> None:
        kind, numbers = constant(I32, KIND_F32), (0, width, 1)
        middle = [constant(I64, number) for number in numbers]
        e.call(kernel, [given[source], kind, *middle, given[records]])

    quantise_into(quantise, "input", shape.hidden, "records")
    with e.loop(0, count) as index:
        record = e.at(experts, index, 8 * len(EXPERT_FIELDS))
        gate_up, down = (e.fetch(e.at(record, 8 * field), POINTER) for field in range(2))
        multiply(gate_up, shape.gate_up_bits, "records", "wide", wide, shape.hidden)
        quantise_into(gated, "wide", shape.intermediate, "gated")
        multiply(down, shape.down_bits, "gated", "added", shape.hidden, shape.intermediate)
        weight = e.fetch(e.at(given["weights"], index, 4), F32)
        e.call(add, [given["out"], given["added"], constant(I64, shape.hidden), weight])
    e.ret_void()
    return function
