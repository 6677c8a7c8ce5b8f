"""The kernel of the head: from the hidden states of one token to its logits and the best of them."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.forms import PackedForm
from potluck.engine.kernels.ir_types import F32, I32, I64, POINTER, Value, constant, vector
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import emit_run, emit_shared
from potluck.model.formats import PackedFormat

# 8 bytes each
HEAD_FIELDS = ("hidden", "norm", "records", "matrix", "logits", "job", "shares")

# where `HEAD_FIELDS` stand → the first of the largest logits; -1: one of them is not finite
HEAD = ir.FunctionType(I64, [POINTER])

_LANES = 16
_INFINITY_BITS = 0x7F800000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What a kernel of the head is written for."""

    hidden: int
    rows: int
    weight_format: PackedFormat
    epsilon: float  # of the norm


def emit_head(module: ir.Module, name: str, path: Path, shape: HeadShape) -> ir.Function:
    """Logits = norm(hidden) Wᵀ; hidden states, weights of the norm and logits are f32."""
    run = emit_run(module, f"{name}_run", path)
    function = ir.Function(module, HEAD, name)
    e = Emitter(function, path)
    given = {
        field: e.fetch(e.at(function.args[0], 8 * index), I64 if field == "shares" else POINTER)
        for index, field in enumerate(HEAD_FIELDS)
    }
    held = shape.weight_format
    form = PackedForm(e=e, name=name, memory=given["records"], weight_format=held)
    inputs = form.normed(given["hidden"], shape.hidden, given["norm"], shape.epsilon)
    nothing = ir.Constant(POINTER, None)
    product = form.product(
        given["matrix"], inputs, given["logits"], nothing, shape.rows, shape.hidden
    )
    pool = (run, given["job"], given["shares"])
    emit_shared(e, pool, product.piece, product.arguments, product.blocks)
    e.ret(_emit_best(e, given["logits"], shape.rows))
    return function


def _emit_best(e: Emitter, logits: Value, count: int) -> Value:
    """The first of the largest; -1 where a number is not finite."""
    wide, bits = vector(F32, _LANES), vector(I32, _LANES)
    best, size = e.variable(constant(wide, -float("inf"))), e.variable(constant(bits, 0))
    where = e.variable(constant(bits, 0))
    lanes = constant(bits, range(_LANES))

    def look(index: Value, mask: Value | None) -> None:
        value = e.fetch_numbers(e.at(logits, index, 4), 0, _LANES, mask)
        magnitude = e.magnitude_bits(value)
        size.value = e.select(e.icmp_unsigned(">", magnitude, size.value), magnitude, size.value)
        if mask is not None:
            value = e.select(mask, value, constant(wide, -float("inf")))
        is_better = e.fcmp_ordered(">", value, best.value)
        here = e.add(e.splat(e.trunc(index, I32), _LANES), lanes)
        best.value = e.select(is_better, value, best.value)
        where.value = e.select(is_better, here, where.value)

    e.vectors(constant(I64, count), _LANES, look)
    highest = e.splat(e.highest(best.value), _LANES)
    is_highest = e.fcmp_ordered("==", best.value, highest)
    first = e.reduce("umin", e.select(is_highest, where.value, constant(bits, -1)))
    is_finite = e.icmp_unsigned("<", e.reduce("umax", size.value), constant(I32, _INFINITY_BITS))
    return e.select(is_finite, e.zext(first, I64), constant(I64, -1))
