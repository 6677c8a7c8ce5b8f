"""Functions of f32 vectors that processors have no instruction for, and rounding to int8."""

import math
from collections.abc import Callable, Mapping

from potluck.engine.kernels.layout import LARGEST, NOTHING
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I8, I32, Operand, constant, vector
from potluck.engine.kernels.writing.memory import Pointer
from potluck.engine.kernels.writing.values import ROUND, Value
from potluck.model.families.facts import ClampedSilu, ClampedSwiglu, GateFunction

_LOG2_E = 1 / math.log(2)
# ln 2 as a sum of two numbers, the first with so few digits that a multiple of it is exact.
_LN2_HIGH = 355 / 512
_LN2_LOW = math.log(2) - _LN2_HIGH
_TERMS = 8  # of the series; what it leaves out is below 1e-8 of the result
_MANTISSA_BITS, _EXPONENT_OF_ONE = 23, 127 << 23  # of an f32
_LAST_ODD = 15  # power of the series of artanh; what it leaves out is below 1e-9 of the result
_SUMS = 32  # of squares, each of every 32nd number
_LEAST, _MOST = -88.0, 88.0  # exp(x) is 0 below these, and infinity above


def emit_exp(e: Emitter, x: Value, *, is_positive: bool = True) -> Value:
    """Return e to the x, as 2 to the n times the Taylor series of the rest; NaN for NaN, and 0 below -87.7.

    `is_positive`: whether x may be. The result is the same, but takes longer.
    """
    typ = x.type
    limited = e.value(constant(typ, _LEAST)).at_least(x)  # NaN stays
    limited = e.value(constant(typ, _MOST)).at_most(limited) if is_positive else limited
    shifted = e.multiply_add(limited, constant(typ, _LOG2_E), constant(typ, ROUND))
    n = shifted - ROUND
    rest = e.multiply_add(n, constant(typ, -_LN2_HIGH), limited)
    rest = e.multiply_add(n, constant(typ, -_LN2_LOW), rest)
    # The lowest bits of the shifted number are n. Of -127 they make 0, as an exponent.
    exponent = (e.bitcast(shifted, vector(I32, typ.count)) << _MANTISSA_BITS) + _EXPONENT_OF_ONE
    result = _exp_series(e, rest) * e.bitcast(exponent, typ)
    return e.select(x > _MOST, constant(typ, math.inf), result) if is_positive else result


def _exp_series(e: Emitter, x: Value) -> Value:
    """Return the sum of x to the k over k!, in pairs of pairs: no sum waits for all the others (Estrin's scheme)."""
    terms = [e.value(constant(x.type, 1 / math.factorial(power))) for power in range(_TERMS)]
    while len(terms) > 1:
        terms = [e.multiply_add(b, x, a) for a, b in zip(terms[::2], terms[1::2], strict=True)]
        x = x * x if len(terms) > 1 else x
    return terms[0]


def emit_silu(e: Emitter, x: Value) -> Value:
    """Return x / (1 + exp(-x))."""
    return x / (1.0 + emit_exp(e, -0.0 - x))


def emit_sigmoid(e: Emitter, x: Value) -> Value:
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + emit_exp(e, -0.0 - x))


def emit_softplus(e: Emitter, x: Value) -> Value:
    """Return ln(1 + exp(x)), as max(x, 0) + ln(1 + u) with u = exp(-|x|).

    ln(1 + u) is 2 artanh(s) with s = u / (2 + u), at most a third: the series of odd powers of s.
    """
    u = emit_exp(e, (-0.0 - x).at_most(x))
    s = u / (u + 2.0)
    square = s * s
    series = e.value(constant(x.type, 1 / _LAST_ODD))
    for power in range(_LAST_ODD - 2, 0, -2):
        series = e.multiply_add(series, square, constant(x.type, 1 / power))
    result = e.multiply_add(series, s + s, x.at_least(0.0))
    return e.select(e.fcmp_unordered("uno", x, x), x, result)


def emit_gelu_tanh(e: Emitter, x: Value) -> Value:
    """Return x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x³) (https://arxiv.org/abs/1606.08415).

    That is x / (1 + exp(-2 u)), which needs no tanh.
    """
    inner = e.multiply_add(x * x, constant(x.type, 0.044715), constant(x.type, 1.0))
    return x / (1.0 + emit_exp(e, x * (-2 * math.sqrt(2 / math.pi)) * inner))


def emit_tanh(e: Emitter, x: Value) -> Value:
    """Return 1 - 2 / (1 + exp(2 x)). Near zero the absolute error is 1e-7."""
    return 1.0 - 2.0 / (1.0 + emit_exp(e, x + x))


def emit_relu2(x: Value) -> Value:
    """Return max(x, 0)²; NaN for NaN."""
    positive = x.e.value(constant(x.type, 0.0)).at_least(x)
    return positive * positive


def emit_xielu(e: Emitter, x: Value, above: Value, below: Value) -> Value:
    """Return what `UngatedFunction` says of xielu. Near zero the absolute error is 1e-7."""
    lanes = x.type.count
    bent = (emit_exp(e, x.at_most(0.0), is_positive=False) - 1.0 - x) * e.splat(below, lanes)
    squared = x * x * e.splat(above, lanes)
    return e.multiply_add(x, constant(x.type, 0.5), e.select(x > 0.0, squared, bent))


EMIT_ACTIVATION: Mapping[GateFunction, Callable[[Emitter, Value], Value]] = {
    "silu": emit_silu,
    "gelu_pytorch_tanh": emit_gelu_tanh,
    "sigmoid": emit_sigmoid,
    "softplus": emit_softplus,
    "exponential": emit_exp,
}


def emit_clamped_swiglu(e: Emitter, gate: Value, up: Value, function: ClampedSwiglu) -> Value:
    """Return what `ClampedSwiglu` says; NaN for NaN."""
    low, high = (e.value(constant(gate.type, sign * function.limit)) for sign in (-1, 1))
    gate, up = high.at_most(gate), high.at_most(low.at_least(up))
    up = up + function.more if function.more else up
    return gate / (1.0 + emit_exp(e, gate * -function.alpha)) * up


def emit_clamped_silu(e: Emitter, gate: Value, up: Value, function: ClampedSilu) -> Value:
    """Return what `ClampedSilu` says; NaN for NaN."""
    low, high = (e.value(constant(gate.type, sign * function.limit)) for sign in (-1, 1))
    return high.at_most(emit_silu(e, gate)) * high.at_most(low.at_least(up))


def emit_inverse_rms(e: Emitter, x: Pointer, width: Operand, epsilon: Operand) -> Value:
    """Return 1 / sqrt(mean(x x) + epsilon) of the first `width` numbers, in the same order everywhere."""
    mean = _squares(e, x, width) / e.sitofp(e.index(width), F32)
    return 1.0 / e.intrinsic("llvm.sqrt.f32", F32, [mean + epsilon])


def emit_moments(e: Emitter, x: Pointer, width: Operand, epsilon: Operand) -> tuple[Value, Value]:
    """Return the mean m of the first `width` numbers, and 1 / sqrt(mean((x - m)²) + epsilon), in the same order everywhere."""
    zeros, count = constant(vector(F32, _SUMS), 0.0), e.sitofp(e.index(width), F32)
    sums, squares = e.variable(zeros), e.variable(zeros)
    for span in e.spans(width, _SUMS):
        sums.value = sums.value + x[span]
    mean = sums.value.total() / count
    for span in e.spans(width, _SUMS):
        some = x[span] - e.splat(mean, _SUMS)
        if span.mask is not None:
            some = e.select(span.mask, some, zeros)
        squares.value = e.multiply_add(some, some, squares.value)
    variance = squares.value.total() / count
    return mean, 1.0 / e.intrinsic("llvm.sqrt.f32", F32, [variance + epsilon])


def emit_inverse_length(e: Emitter, x: Pointer, width: Operand, epsilon: Operand) -> Value:
    """Return 1 / sqrt(x x + epsilon) of the first `width` numbers, in the same order everywhere."""
    return 1.0 / e.intrinsic("llvm.sqrt.f32", F32, [_squares(e, x, width) + epsilon])


def _squares(e: Emitter, x: Pointer, width: Operand) -> Value:
    """Return the sum of the squares of the first `width` numbers."""
    squares = e.variable(constant(vector(F32, _SUMS), 0.0))
    for span in e.spans(width, _SUMS):
        some = x[span]
        squares.value = e.multiply_add(some, some, squares.value)
    return squares.value.total()


def emit_scale(e: Emitter, largest: Value, integer: int = LARGEST) -> tuple[Value, Value]:
    """Return the scale that maps the largest magnitude to an integer, and its inverse; zeros below 1e-30."""
    zero = constant(F32, 0.0)
    is_nothing = largest < NOTHING
    scale = e.select(is_nothing, zero, largest / float(integer))
    return scale, e.select(is_nothing, zero, float(integer) / largest)


def emit_integers(e: Emitter, numbers: Value, inverse: Value, largest: int = LARGEST) -> Value:
    """Return the nearest integer, an i32, of each number times the inverse of the scale."""
    # The limits change no finite number; a NaN would become an integer that depends on the processor.
    scaled = (numbers * inverse).at_least(-largest).at_most(largest)
    return e.fptosi(scaled.rounded(), vector(I32, numbers.type.count))


def emit_bytes(e: Emitter, integers: Value) -> Value:
    """Return integers that fit into 8 bits as i8."""
    return e.trunc(integers, vector(I8, integers.type.count))
