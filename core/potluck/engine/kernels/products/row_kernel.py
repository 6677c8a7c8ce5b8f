"""The kernel of norms and gates of many tokens, with the bits that a layer's kernel has for one."""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import Reading, emit_row
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.ir_types import F32, KIND_F32, constant
from potluck.engine.kernels.writing.memory import Address, Number, Record


class Rows(Record):
    """The arguments of the kernel. A block of the job is a token."""

    source = Address(KIND_F32)  # (tokens, stride)
    stride = Number()
    weight = Address(KIND_F32)  # (width,), of a norm
    out = Address(KIND_F32)  # (tokens, width)
    width = Number()


def emit_rows(
    module: ir.Module, name: str, path: Path, reading: Reading, number: float = 0.0
) -> ir.Function:
    """Write each token's numbers, read in this way, with the number of `Reading`: a job of the threads."""
    row = emit_row(module, f"{name}_row", path, reading, KIND_F32)
    e, given, first, last = begin_piece(module, name, path, Rows)
    with e.loop(first, last) as token:
        source, out = given.source + token * given.stride, given.out + token * given.width
        e.call(row, [source, given.width, out, given.weight, constant(F32, number)])
    return e.end()
