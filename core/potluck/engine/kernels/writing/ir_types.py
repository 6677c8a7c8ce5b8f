"""Types and constants of LLVM IR, and the kinds of numbers that kernels find in memory."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from llvmlite import ir

Operand: TypeAlias = Any
"""What an instruction takes: a `Value` (see `values`), a value of llvmlite, or a Python number."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()
NULL = ir.Constant(POINTER, None)

# Of numbers in memory, as the kernels' callers name them; int8 only in a KV cache.
KIND_F32, KIND_BF16, KIND_F16, KIND_INT8 = range(4)
KIND_BYTES = (4, 2, 2, 1)


def internal(function: ir.Function) -> ir.Function:
    """Make a function visible in its module only, and never inlined."""
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function


def vector(element: ir.Type, count: int) -> ir.VectorType:
    """The type of a vector of `count` elements."""
    return ir.VectorType(element, count)


def constant(typ: ir.Type, value: float | Sequence[float]) -> ir.Constant:
    """The number, in every lane if the type is a vector; or one number for each lane."""
    numbers = value if isinstance(value, (int, float)) else tuple(value)
    return _constant(typ, numbers, repr(numbers))


@lru_cache(maxsize=4096)  # a kernel has a few constants thousands of times
def _constant(typ: ir.Type, value: float | tuple[float, ...], _written: str) -> ir.Constant:
    """Made once for each way in which it is written: 0.0 and -0.0 are equal."""
    return ir.Constant(typ, value)
