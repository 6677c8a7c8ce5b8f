"""The kinds of numbers that lie in memory (`KIND_…`): vectors of them become f32, and f32 become them.

Numbers of 16 bits are handled as their bits, i16: half is not a type that every processor loads.
"""

from potluck.engine.kernels.writing.ir_types import (
    F16,
    F32,
    I8,
    I16,
    I32,
    KIND_BF16,
    KIND_F16,
    KIND_F32,
    KIND_INT8,
    constant,
    vector,
)
from potluck.engine.kernels.writing.values import Value

_HALF_BITS = 0x3F000000  # of 0.5 in f32

STORED = (F32, I16, I16, I8)
"""The type of LLVM that a number of each kind is loaded and stored as."""


def to_f32(stored: Value, kind: int) -> Value:
    """Return stored numbers of a kind as f32."""
    if kind == KIND_F32:
        return stored
    if kind == KIND_INT8:
        return stored.e.sitofp(stored, vector(F32, stored.type.count))
    return from_bfloat(stored) if kind == KIND_BF16 else from_half(stored)


def from_f32(numbers: Value, kind: int) -> Value:
    """Return f32 as floats of a kind, as they are stored."""
    assert kind != KIND_INT8, "integers need a scale"
    if kind == KIND_F32:
        return numbers
    return to_half(numbers) if kind == KIND_F16 else to_bfloat(numbers)


def from_half(stored: Value) -> Value:
    """Return the bits of f16 as f32."""
    e, count = stored.e, stored.type.count
    wide, bits = vector(F32, count), vector(I32, count)
    if e.path.half_in_hardware:
        return e.fpext(e.bitcast(stored, vector(F16, count)), wide)
    raw = e.zext(stored, bits)
    sign = (raw & 0x8000) << 16
    moved = (raw & 0x7FFF) << 13
    size = e.bitcast(e.bitcast(moved, wide) * 2.0**112, bits)
    # Infinity and NaN have the largest exponent of either format.
    size = e.select(moved < (0x7C00 << 13), size, size | 0x7F800000)
    return e.bitcast(size | sign, wide)


def to_half(numbers: Value) -> Value:
    """Return f32 below 65520 as the bits of f16, rounded to nearest, ties to even."""
    e, count = numbers.e, numbers.type.count
    wide, bits, short = vector(F32, count), vector(I32, count), vector(I16, count)
    if e.path.half_in_hardware:
        return e.bitcast(e.fptrunc(numbers, vector(F16, count)), short)
    sign = (e.bitcast(numbers, bits) & 0x80000000) >> 16
    size = e.bitcast(numbers.magnitude_bits(), wide)
    small = _cut(e.bitcast(size * 2.0**-112, bits), 13)
    # Below the least normal f16, that product is rounded to an f32 without an exponent, and would be rounded twice.
    # Beside one half, f32 are multiples of 2^-24, as such f16 are.
    tiny = e.bitcast(size + 0.5, bits) - _HALF_BITS
    return e.trunc(e.select(size < 2.0**-14, tiny, small) | sign, short)


def from_bfloat(stored: Value) -> Value:
    """Return the bits of bf16, which are the upper halves of f32, as f32."""
    e, count = stored.e, stored.type.count
    return e.bitcast(e.zext(stored, vector(I32, count)) << 16, vector(F32, count))


def to_bfloat(numbers: Value) -> Value:
    """Return f32 as the bits of bf16, rounded to nearest, ties to even; NaN stays NaN."""
    e, count = numbers.e, numbers.type.count
    cut = _cut(e.bitcast(numbers, vector(I32, count)), 16)
    short = vector(I16, count)
    is_nan = e.fcmp_unordered("uno", numbers, numbers)
    return e.select(is_nan, constant(short, 0x7FC0), e.trunc(cut, short))


def _cut(bits: Value, count: int) -> Value:
    """Shift the lowest `count` bits out, rounding to nearest, ties to even."""
    odd = (bits >> count) & 1
    return (bits + (odd + ((1 << (count - 1)) - 1))) >> count
