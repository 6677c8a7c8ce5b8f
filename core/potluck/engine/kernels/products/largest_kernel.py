"""The kernel that finds the largest magnitude of some numbers by their bits, in one pass over the memory."""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import I16, I32, I64, POINTER, constant, vector
from potluck.engine.kernels.writing.memory import Span

_BYTES = 64  # of a vector
_AT_ONCE = 4  # vectors; each has a maximum of its own

# Memory, how many numbers → the bits of the largest magnitude. A NaN's are above those of infinity.
LARGEST = ir.FunctionType(I32, [POINTER, I64])


def emit_largest(module: ir.Module, name: str, path: Path, nbytes: int) -> ir.Function:
    """Write it for numbers of 2 or 4 bytes, whose bits without the sign are in the order of their magnitudes."""
    e = Emitter(ir.Function(module, LARGEST, name), path)
    memory, count = e.arguments
    integer, lanes = {2: I16, 4: I32}[nbytes], _BYTES // nbytes
    typ, magnitude = vector(integer, lanes), (1 << (8 * nbytes - 1)) - 1
    numbers, highest = memory.of(integer), [e.variable(constant(typ, 0)) for _ in range(_AT_ONCE)]
    whole = count - count % (_AT_ONCE * lanes)
    with e.loop(0, whole, _AT_ONCE * lanes) as first:
        for index, one in enumerate(highest):
            bits = numbers[Span(first + index * lanes, lanes)] & magnitude
            one.value = bits.at_least(one.value)
    for span in e.spans(count - whole, lanes):
        bits = (numbers + whole)[span] & magnitude
        highest[0].value = bits.at_least(highest[0].value)
    most = highest[0].value
    for one in highest[1:]:
        most = one.value.at_least(most)
    found = most.reduce("umax")
    return e.end(found if nbytes == 4 else e.zext(found, I32))
