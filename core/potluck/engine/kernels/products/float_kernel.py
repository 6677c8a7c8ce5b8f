"""The kernel of products with a matrix of plain numbers, for some of its rows.

The matrix is row-major, (rows, width), with any number of bytes between rows: nothing is repacked. Sums,
addends and outputs are f32; inputs are f32 or of the kind of the weights. Rows are computed one after the
other, each in steps of some vectors along the width, and every vector has a sum of its own: so memory is
read as one straight stream, and no multiply-add waits for another. Several rows side by side would share
the loads of the inputs, but read as many streams: they are a tenth to a third slower. A few tokens share each
vector of weights, which is converted to f32 once.

One core that reads 44 GB/s multiplies at 43 GB/s, at a width of 2048. There is no variant with dot products
of bf16, because the product waits for memory.
"""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    KIND_BF16,
    KIND_BYTES,
    KIND_F16,
    KIND_F32,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value

# Tokens of a call. The inputs of 8 do not fit into the first cache, and each takes twice as long.
MOST_TOKENS = 4

_LANES = 16
_CACHE_LINE = 64
# How far weights are prefetched ahead; 4096 and 16384 are a few hundredths slower. Where `Path.reads_near` (AMD EPYC, Zen 2),
# one core reads 15.1 GB/s of bf16 with 512, 14.3 with 1024 and 13.2 with 8192, and 15.5, 14.9 and 13.4 of f16.
_FAR_BYTES, _NEAR_BYTES = 8192, 512
# Sums of a row, each of `_LANES` lanes, whatever the path and the number of tokens: all have the same bits.
# With f32 fewer are enough to wait for memory alone, and cost less where there are many tokens.
_SUMS = {KIND_F32: 2, KIND_BF16: 4, KIND_F16: 4}
F32_SUMS = _SUMS[KIND_F32] * _LANES  # of a row of f32; sum i has every product i + n `F32_SUMS`
_WIDE = 4096  # inputs; more of them in f32 leave no room for the weights in the first cache
_MANY_REGISTERS = 32


class FloatProduct(Record):
    """The arguments of the product. A block of the job is a row of the matrix."""

    weights = Address(I8)
    stride = Number()  # bytes from one row to the next
    inputs = Address(I8)  # (tokens, width)
    out = Address(KIND_F32)  # (tokens, rows)
    addend = Address(KIND_F32)  # (rows,), or null
    rows = Number()
    width = Number()


def input_kind(path: Path, kind: int, width: int) -> int:
    """Return the kind of input that a matrix of this kind and width is multiplied with fastest.

    Measured: AVX-512 at a width of 8192, 35 GB/s with f32 and 41 with bf16; AVX2 at 8192, 36 with either,
    and at 2048, 42 with f32 and 37 with bf16.
    """
    return kind if width > _WIDE and path.registers >= _MANY_REGISTERS else KIND_F32


def emit_float_product(
    module: ir.Module, name: str, path: Path, kind: int, inputs: int = KIND_F32, tokens: int = 1
) -> ir.Function:
    """out[t, n] = Σ x[t, k] W[n, k] + addend[n], for the rows n from first to last, as a job of the threads.

    Args:
        module: what it is added to.
        name: of the function.
        path: what to write it for.
        kind: of the weights.
        inputs: their kind.
        tokens: how many there are.
    """
    e, given, first, last = begin_piece(module, name, path, FloatProduct)
    at_once = max(1, path.registers // (2 * _SUMS[kind]))
    with e.loop(first, last) as row:
        for start in range(0, tokens, at_once):
            members = range(start, min(start + at_once, tokens))
            totals = _emit_row(e, (kind, inputs), given, row, members)
            for member, total in zip(members, totals, strict=True):
                given.out[given.rows * member + row] = _with_addend(e, given.addend, row, total)
    return e.end()


def _emit_row(
    e: Emitter, kinds: tuple[int, int], given: FloatProduct, row: Value, members: range
) -> list[Value]:
    """Return Σ x[t, k] W[row, k] of these tokens; the first members also prefetch the row."""
    zero = constant(vector(F32, _LANES), 0.0)
    kind, input_kind = kinds
    totals = [[e.variable(zero) for _ in range(_SUMS[kind])] for _ in members]
    weights = given.weights.of(kind).skip(row, given.stride)
    inputs = [given.inputs.of(input_kind) + given.width * member for member in members]

    def step(span: Span, column: tuple[Variable, ...]) -> None:
        numbers = weights[span]
        for x, total in zip(inputs, column, strict=True):
            total.value = e.multiply_add(numbers, x[span], total.value)

    columns = list(zip(*totals, strict=True))
    size = _SUMS[kind] * _LANES
    left = given.width % size
    whole = given.width - left
    with e.loop(0, whole, size) as index:
        if members.start == 0:
            ahead = (weights + index).skip(_NEAR_BYTES if e.path.reads_near else _FAR_BYTES)
            for offset in range(0, size * KIND_BYTES[kind], _CACHE_LINE):
                ahead.skip(offset).prefetch()
        for number, column in enumerate(columns):
            step(Span(index + number * _LANES, _LANES), column)
    with e.if_then(left > 0):
        for number, column in enumerate(columns):
            rest = e.first_lanes(left - number * _LANES, _LANES)
            step(Span(whole + number * _LANES, _LANES, rest), column)
    return [_sum(e, parts) for parts in totals]


def _sum(e: Emitter, parts: list[Variable]) -> Value:
    total = parts[0].value
    for part in parts[1:]:
        total = total + part.value
    return total.total()


def _with_addend(e: Emitter, addend: Pointer, row: Value, total: Value) -> Value:
    result = e.variable(total)
    with e.if_then(addend.is_set):
        result.value = total + addend[row]
    return result.value
