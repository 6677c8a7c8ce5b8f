"""a · b + c with one rounding, for processors without an instruction for it.

The product of two f32 is exact in f64. Its sum with `c` is rounded there, and then to f32. Rounding twice goes
wrong only if the first result is a tie of the second: then its low 28 bits are zero. Such a sum is rounded
to odd: where it is not exact, the last bit becomes 1, so that the second rounding sees on which side of the tie
the exact sum is (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", 2008). That is rare and takes long, so it is done only where a number needs it.
"""

from llvmlite import ir

from potluck.engine.kernels.writing.ir_types import F64, I32, I64, vector
from potluck.engine.kernels.writing.values import Value

_BELOW_A_TIE = 2**28 - 1  # the bits of f64 below the highest one that f32 lacks


def emit_fused(a: Value, b: Value, c: Value) -> Value:
    """Return a · b + c, rounded once to f32, of numbers or of vectors."""
    e, narrow = a.e, a.type
    count = narrow.count if isinstance(narrow, ir.VectorType) else None
    wide, bits, low = (kind if count is None else vector(kind, count) for kind in (F64, I64, I32))
    product, addend = e.fpext(a, wide) * e.fpext(b, wide), e.fpext(c, wide)
    total = product + addend
    integer = e.bitcast(total, bits)
    may_be_ties = (e.trunc(integer, low) & _BELOW_A_TIE).equals(0)
    before = e.block
    with e.if_then(e.bitcast(may_be_ties, ir.IntType(count or 1)).differs(0), likely=False):
        # What the rounding of the sum left out, exactly (Knuth's TwoSum); NaN where the sum is not finite.
        part = total - product
        error = (product - (total - part)) + (addend - part)
        # The exact sum is farther from zero than `total` where both have one sign: 1 there, else -1.
        direction = (integer ^ e.bitcast(error, bits)).shifted_signed(63) | 1
        is_even = (integer & 1).equals(0)
        odd = e.select(error.differs(0.0) & is_even, integer + direction, integer)
        odd, after = e.bitcast(odd, wide), e.block
    result = e.phi(wide)
    result.add_incoming(total, before)
    result.add_incoming(odd, after)
    return e.fptrunc(result, narrow)
