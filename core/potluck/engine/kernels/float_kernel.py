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

from collections.abc import Sequence

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter, Variable
from potluck.engine.kernels.ir_types import (
    F32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE

# `stride` in bytes; `inputs` (tokens, width), `out` (tokens, rows); `addend` (rows,) or null
FLOAT_FIELDS = ("weights", "stride", "inputs", "out", "addend", "rows", "width")
MOST_TOKENS = (
    4  # at once; the inputs of 8 do not fit the first cache, and a token takes twice as long
)

_POINTERS = {"weights", "inputs", "out", "addend"}
_LANES = 16
_CACHE_LINE = 64
_PREFETCH_BYTES = 8192  # ahead; 4096 and 16384 are a few hundredths slower
_WIDE = 4096  # inputs; more of them in f32 leave the weights no room in the first cache
_MANY_REGISTERS = 32


def input_kind(path: Path, kind: int, width: int) -> int:
    """The kind of input that a matrix of this kind and width is multiplied with fastest.

    Measured: AVX-512 at a width of 8192, 35 GB/s with f32 and 41 with bf16; AVX2 at 8192, 36 with either,
    and at 2048, 42 with f32 and 37 with bf16.
    """
    return kind if width > _WIDE and path.registers >= _MANY_REGISTERS else KIND_F32


def emit_float_product(
    module: ir.Module, name: str, path: Path, kind: int, inputs: int = KIND_F32, tokens: int = 1
) -> ir.Function:
    """out[t, n] = Σ x[t, k] W[n, k] + addend[n], for the rows n from first to last, as a pool's job.

    Args:
        module: what it is added to.
        name: of the function.
        path: what to write it for.
        kind: of the weights.
        inputs: their kind.
        tokens: how many there are.
    """
    function = ir.Function(module, PIECE, name)
    arguments, first, last = function.args
    e = Emitter(function, path)
    given = {
        field: e.fetch(e.at(arguments, 8 * index), POINTER if field in _POINTERS else I64)
        for index, field in enumerate(FLOAT_FIELDS)
    }
    at_once = max(1, path.registers // 2)
    with e.loop(first, last) as row:
        for start in range(0, tokens, at_once):
            members = range(start, min(start + at_once, tokens))
            totals = _emit_row(e, (kind, inputs), given, row, members)
            for member, total in zip(members, totals, strict=True):
                place = e.add(e.mul(given["rows"], constant(I64, member)), row)
                e.put(_with_addend(e, given["addend"], row, total), e.at(given["out"], place, 4))
    e.ret_void()
    return function


def float_arguments(
    kind: int, weights: Value, inputs: Value, out: Value, addend: Value, rows: int, width: int
) -> list[Value]:
    """The arguments of such a piece for one token, as a caller that is a kernel gives them."""
    row_bytes = KIND_BYTES[kind] * width
    stride, *shape = (constant(I64, number) for number in (row_bytes, rows, width))
    return [weights, stride, inputs, out, addend, *shape]


def _emit_row(
    e: Emitter, kinds: tuple[int, int], given: dict[str, Value], row: Value, members: range
) -> list[Value]:
    """Σ x[t, k] W[row, k] of these tokens; the first members also prefetch the row."""
    zero = constant(vector(F32, _LANES), 0.0)
    sums = max(1, e.path.registers // 4 // len(members))
    kind, input_kind = kinds
    token_bytes = e.mul(given["width"], constant(I64, KIND_BYTES[input_kind]))
    totals = [[e.variable(zero) for _ in range(sums)] for _ in members]
    weights, width = e.at(given["weights"], e.mul(row, given["stride"])), given["width"]
    inputs = [e.at(given["inputs"], token_bytes, member) for member in members]

    def step(index: Value, column: Sequence[Variable], mask: Value | None) -> None:
        here = e.at(weights, index, KIND_BYTES[kind])
        numbers = e.fetch_numbers(here, kind, _LANES, mask)
        for address, total in zip(inputs, column, strict=True):
            there = e.at(address, index, KIND_BYTES[input_kind])
            x = e.fetch_numbers(there, input_kind, _LANES, mask)
            total.value = e.multiply_add(numbers, x, total.value)

    columns = list(zip(*totals, strict=True))
    size = sums * _LANES
    left = e.srem(width, constant(I64, size))
    whole = e.sub(width, left)
    with e.loop(0, whole, size) as index:
        if members.start == 0:
            ahead = e.at(e.at(weights, index, KIND_BYTES[kind]), _PREFETCH_BYTES)
            for offset in range(0, size * KIND_BYTES[kind], _CACHE_LINE):
                e.prefetch(e.at(ahead, offset))
        for number, column in enumerate(columns):
            step(e.add(index, constant(I64, number * _LANES)), column, None)
    e.vectors(left, _LANES, lambda index, mask: step(e.add(whole, index), columns[0], mask))
    return [_sum(e, parts) for parts in totals]


def _sum(e: Emitter, parts: Sequence[Variable]) -> Value:
    total = parts[0].value
    for part in parts[1:]:
        total = e.fadd(total, part.value)
    return e.total(total)


def _with_addend(e: Emitter, addend: Value, row: Value, total: Value) -> Value:
    result = e.variable(total)
    with e.if_then(e.icmp_unsigned("!=", e.ptrtoint(addend, I64), constant(I64, 0))):
        result.value = e.fadd(total, e.fetch(e.at(addend, row, 4), F32))
    return result.value
