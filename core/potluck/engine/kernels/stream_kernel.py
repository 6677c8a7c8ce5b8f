"""The kernel that only reads memory, to measure the least time that a token of decoding can take."""

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import I32, I64, POINTER, constant, vector
from potluck.engine.kernels.layout import ROWS, VECTOR
from potluck.engine.kernels.paths import Path

_AT_ONCE = 8  # vectors, each added to a sum of its own

# memory, its bytes → a number that depends on all of them
READ = ir.FunctionType(I32, [POINTER, I64])

READ_STEP = _AT_ONCE * VECTOR  # bytes; a last step that is not whole is not read


def emit_read(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Add up all 32-bit integers."""
    function = ir.Function(module, READ, name)
    memory, nbytes = function.args
    e = Emitter(function, path)
    typ = vector(I32, ROWS)
    sums = [e.variable(constant(typ, 0)) for _ in range(_AT_ONCE)]
    whole = e.and_(nbytes, constant(I64, -READ_STEP))
    with e.loop(0, whole, READ_STEP) as offset:
        here = e.at(memory, offset)
        for index, sum_ in enumerate(sums):
            sum_.value = e.add(sum_.value, e.fetch(e.at(here, index * VECTOR), typ))
    total = constant(typ, 0)
    for sum_ in sums:
        total = e.add(total, sum_.value)
    e.ret(e.reduce("add", total))
    return function
