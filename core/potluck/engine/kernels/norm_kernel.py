"""The kernel of root mean square norms of many tokens, with the bits that a layer's kernel has for one."""

from llvmlite import ir

from potluck.engine.kernels.ir_types import F32, KIND_F32, constant
from potluck.engine.kernels.memory import Address, Number, Record
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import begin_piece
from potluck.engine.kernels.rows import emit_row


class Norm(Record):
    """The arguments of a norm. A block of the job is a token."""

    source = Address(KIND_F32)  # (tokens, width)
    weight = Address(KIND_F32)  # (width,)
    out = Address(KIND_F32)  # (tokens, width)
    width = Number()


def emit_norm(module: ir.Module, name: str, path: Path, epsilon: float) -> ir.Function:
    """Write out = x / sqrt(mean(x x) + epsilon) · weight for each token: a job of the pool."""
    row = emit_row(module, f"{name}_row", path, "normed", KIND_F32)
    e, given, first, last = begin_piece(module, name, path, Norm)
    with e.loop(first, last) as token:
        start = token * given.width
        numbers = [given.source + start, given.width, given.out + start, given.weight]
        e.call(row, [*numbers, constant(F32, epsilon)])
    return e.end()
