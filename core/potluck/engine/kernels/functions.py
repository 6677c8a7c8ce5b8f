"""Functions of f32 vectors that no processor has an instruction for, and rounding to int8."""

import math
from collections.abc import Callable, Mapping

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import F32, I8, I32, Value, constant, vector
from potluck.engine.kernels.layout import LARGEST, NOTHING
from potluck.model.config import Activation

Numbers = Callable[[Value, Value | None], Value]
"""A vector of the numbers from this index on, f32; with a mask, those, and else zeros."""

_LOG2_E = 1 / math.log(2)
# ln 2 in two parts, the first with so few digits that a multiple of it is exact.
_LN2_HIGH = 355 / 512
_LN2_LOW = math.log(2) - _LN2_HIGH
_DEGREE = 7  # of the series; what it leaves out is below 1e-8 of the result
_LEAST, _MOST = -87.0, 88.0  # exp beyond these is taken for the least, and for infinity


def emit_exp(e: Emitter, x: Value) -> Value:
    """E to the x: 2 to the n times the Taylor series of the rest; of NaN, NaN."""
    typ = x.type
    limited = e.limit(x, _LEAST, _MOST)
    n = e.rounded(e.fmul(limited, constant(typ, _LOG2_E)))
    rest = e.multiply_add(n, constant(typ, -_LN2_HIGH), limited)
    rest = e.multiply_add(n, constant(typ, -_LN2_LOW), rest)
    series = constant(typ, 1 / math.factorial(_DEGREE))
    for power in reversed(range(_DEGREE)):
        series = e.multiply_add(series, rest, constant(typ, 1 / math.factorial(power)))
    bits = vector(I32, typ.count)
    exponent = e.add(e.fptosi(n, bits), constant(bits, 127))
    power_of_two = e.bitcast(e.shl(exponent, constant(bits, 23)), vector(F32, typ.count))
    is_nan = e.fcmp_unordered("uno", x, x)
    is_huge = e.fcmp_ordered(">", x, constant(typ, _MOST))
    result = e.select(is_nan, x, e.fmul(series, power_of_two))
    return e.select(is_huge, constant(typ, math.inf), result)


def emit_silu(e: Emitter, x: Value) -> Value:
    """X / (1 + exp(-x))."""
    negative = e.fsub(constant(x.type, -0.0), x)
    return e.fdiv(x, e.fadd(constant(x.type, 1.0), emit_exp(e, negative)))


def emit_gelu_tanh(e: Emitter, x: Value) -> Value:
    """X / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x³) (https://arxiv.org/abs/1606.08415).

    That is x / (1 + exp(-2 u)), which needs no tanh.
    """
    typ, root = x.type, math.sqrt(2 / math.pi)
    inner = e.multiply_add(e.fmul(x, x), constant(typ, 0.044715), constant(typ, 1.0))
    power = emit_exp(e, e.fmul(e.fmul(x, constant(typ, -2 * root)), inner))
    return e.fdiv(x, e.fadd(constant(typ, 1.0), power))


def emit_tanh(e: Emitter, x: Value) -> Value:
    """1 - 2 / (1 + exp(2 x)); near zero it is exact to 1e-7, not to so many digits."""
    typ = x.type
    power = emit_exp(e, e.fadd(x, x))
    return e.fsub(constant(typ, 1.0), e.fdiv(constant(typ, 2.0), e.fadd(constant(typ, 1.0), power)))


EMIT_ACTIVATION: Mapping[Activation, Callable[[Emitter, Value], Value]] = {
    "silu": emit_silu,
    "gelu_pytorch_tanh": emit_gelu_tanh,
}


def emit_inverse_root(
    e: Emitter, numbers: Numbers, width: Value, lanes: int, epsilon: Value
) -> Value:
    """1 / sqrt(mean(x x) + epsilon) of so many numbers, in as many lanes as they come in."""
    squares = e.variable(constant(vector(F32, lanes), 0.0))

    def add_square(index: Value, mask: Value | None) -> None:
        some = numbers(index, mask)
        squares.value = e.multiply_add(some, some, squares.value)

    e.vectors(width, lanes, add_square)
    mean = e.fdiv(e.total(squares.value), e.sitofp(width, F32))
    root = e.intrinsic("llvm.sqrt.f32", F32, [e.fadd(mean, epsilon)])
    return e.splat(e.fdiv(constant(F32, 1.0), root), lanes)


def emit_scale(e: Emitter, largest: Value) -> tuple[Value, Value]:
    """What 127 steps to the largest magnitude are worth each, and one over it; of nothing, zeros."""
    limit, zero = constant(F32, float(LARGEST)), constant(F32, 0.0)
    is_nothing = e.fcmp_ordered("<", largest, constant(F32, NOTHING))
    scale = e.select(is_nothing, zero, e.fdiv(largest, limit))
    return scale, e.select(is_nothing, zero, e.fdiv(limit, largest))


def emit_integers(e: Emitter, numbers: Value, inverse: Value) -> Value:
    """The nearest int8, as i32, of each number divided by the scale."""
    count = numbers.type.count
    # The limits change no finite number; a NaN would be an integer of the processor's liking.
    scaled = e.limit(e.fmul(numbers, e.splat(inverse, count)), -LARGEST, LARGEST)
    return e.fptosi(e.rounded(scaled), vector(I32, count))


def emit_bytes(e: Emitter, integers: Value) -> Value:
    """Integers that fit into 8 bits, in 8 bits."""
    return e.trunc(integers, vector(I8, integers.type.count))
