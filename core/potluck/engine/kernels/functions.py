"""Functions of f32 vectors that no processor has an instruction for."""

import math

from potluck.engine.kernels.emit import F32, I32, Emitter, Value, constant, vector

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
