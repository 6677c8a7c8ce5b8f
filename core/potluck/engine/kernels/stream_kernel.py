"""The kernel that only reads memory, to measure the least time that a token of decoding can take."""

from llvmlite import ir

from potluck.engine.kernels.layout import ROWS, VECTOR
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import I32, I64, POINTER, constant, vector

_AT_ONCE = 8  # vectors read at a time; each is added to a sum of its own

# Memory, its number of bytes → a number that depends on all of them.
READ = ir.FunctionType(I32, [POINTER, I64])

# Bytes from what is read to what is prefetched; 0: nothing is. Which is faster depends on the processor: one core of an
# Intel Xeon reads 15.0 GB/s without and 16.8 at 2048, an AMD EPYC (Zen 5) products with int8 at 40 and 37, and one of
# Zen 2 18.1 without, 19.1 at 256, and 16.8 at 2048.
READ_AHEAD = (0, 256, 2048)
READ_STEP = _AT_ONCE * VECTOR  # bytes read at a time; what is left at the end is not read


def emit_read(module: ir.Module, name: str, path: Path, ahead: int = 0) -> ir.Function:
    """Add up all 32-bit integers."""
    e = Emitter(ir.Function(module, READ, name), path)
    memory, nbytes = e.arguments
    typ = vector(I32, ROWS)
    sums = [e.variable(constant(typ, 0)) for _ in range(_AT_ONCE)]
    with e.loop(0, nbytes & -READ_STEP, READ_STEP) as offset:
        here = memory.of(typ).skip(offset)
        for index, sum_ in enumerate(sums):
            if ahead:
                here.skip(ahead + VECTOR * index).prefetch()
                e.keep_order()
            sum_.value = sum_.value + here[index]
    total = e.value(constant(typ, 0))
    for sum_ in sums:
        total = total + sum_.value
    return e.end(total.reduce("add"))
