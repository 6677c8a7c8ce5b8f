"""The kernel of products: x Wᵀ of a quantised input and packed weights, for some blocks of rows.

For each block of 16 rows and each tile of tokens: for each group of 32 inputs, the kernel unpacks the weights
once, sums weight x input as integers for each token, and adds sum x scale of the weights x scale of the
input to the token's 16 totals, f32. A format with offsets then adds offset x (scale of the input x minus the
sum of its integers), which the record of the input has.
One token reads the weights as fast as memory gives them. With many tokens, a block stays in the processor's
first cache while a panel of tokens passes by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.block_kernel import emit_integers, emit_offsets, emit_scales
from potluck.engine.kernels.dots import Dot, State, make_dot
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.layout import (
    CACHE_LINE,
    GROUP,
    QUAD,
    RECORD_BYTES,
    RECORD_SUM,
    RECORD_VALUES,
    RECORD_WORTH,
    ROWS,
    TILES,
    groups_of,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE
from potluck.model.formats import INT8, PackedFormat

# How far ahead. One core, int4: 34 GB/s without, 35 at 2048, 38 at 4096, 40 at 8192; 42 if it only reads. Not
# faster: several groups at a time, loads of whole cache lines, two streams, fewer lines, the second cache only.
PREFETCH_BYTES = 6144
# A format and a number of tokens that are not prefetched for: 40 GB/s without, 37 with. So little is computed
# on each line that the processor fetches as far ahead by itself.
_RUNS_AHEAD = (INT8, 1)
# Tokens whose inputs stay in the second cache. 64: a twentieth slower; 256: not faster.
PANEL = 128

# weights, inputs, out, addend or null, groups, rows, tokens, numbers from one token's addend to the next's,
# first and last block; out and addend are f32
PRODUCT = ir.FunctionType(VOID, [POINTER] * 4 + [I64] * 6)


def emit_product(
    module: ir.Module,
    name: str,
    path: Path,
    weight_format: PackedFormat,
    tiles: Sequence[int] = TILES,
) -> ir.Function:
    """out[t, n] = Σ x[t, k] W[n, k] + addend[t, n], for the rows n of blocks first to last.

    A kernel that is never given many tokens needs only the smallest of the tiles.
    """
    finish = _emit_finish(module, f"{name}_finish", path)
    function = ir.Function(module, PRODUCT, name)
    e = Emitter(function, path)
    weights, inputs, out, addend, groups, rows, tokens, stride, first, last = function.args

    def store(total: Value, block: Value, token: Value) -> None:
        e.call(finish, [total, out, addend, rows, stride, block, token])

    kernel = _Kernel(
        e=e, dot=make_dot(path, weight_format), held=weight_format, weights=weights,
        inputs=inputs, groups=groups, store=store,
    )  # fmt: skip
    with e.loop(0, tokens, PANEL) as start:
        end = e.add(start, constant(I64, PANEL))
        end = e.select(e.icmp_signed("<", end, tokens), end, tokens)
        with e.loop(first, last) as block:
            _emit_tiles(kernel, tiles, block, start, end)
    e.ret_void()
    return function


def emit_product_piece(
    module: ir.Module,
    name: str,
    path: Path,
    weight_format: PackedFormat,
    tiles: Sequence[int] = TILES,
) -> ir.Function:
    """The product as a job of the pool: all but its last two arguments in memory, 8 bytes each."""
    product = emit_product(module, f"{name}_product", path, weight_format, tiles)
    function = ir.Function(module, PIECE, name)
    arguments, first, last = function.args
    e = Emitter(function, path)
    before = [
        e.fetch(e.at(arguments, 8 * index), kind) for index, kind in enumerate(PRODUCT.args[:-2])
    ]
    e.call(product, [*before, first, last])
    e.ret_void()
    return function


def product_arguments(
    weights: Value, inputs: Value, out: Value, addend: Value, rows: int, width: int
) -> list[Value]:
    """The arguments of such a piece for one token, as a caller that is a kernel gives them."""
    numbers = (groups_of(width), rows, 1, 0)
    return [weights, inputs, out, addend, *(constant(I64, number) for number in numbers)]


def _emit_finish(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Add the addend, if any, and write 16 rows of a token; fewer at the end of the matrix."""
    arguments = [vector(F32, ROWS), POINTER, POINTER, I64, I64, I64, I64]
    function = internal(ir.Function(module, ir.FunctionType(VOID, arguments), name))
    total, out, addend, rows, stride, block, token = function.args
    e = Emitter(function, path)
    row = e.mul(block, constant(I64, ROWS))
    offset = e.add(e.mul(token, rows), row)
    addend_offset = e.add(e.mul(token, stride), row)
    left = e.sub(rows, row)
    has_addend = e.icmp_unsigned("!=", e.ptrtoint(addend, I64), constant(I64, 0))

    def write(mask: Value | None) -> None:
        result = e.variable(total)
        with e.if_then(has_addend):
            more = e.fetch_numbers(e.at(addend, addend_offset, 4), KIND_F32, ROWS, mask)
            result.value = e.fadd(total, more)
        e.put_numbers(result.value, e.at(out, offset, 4), KIND_F32, mask)

    with e.if_else(e.icmp_signed(">=", left, constant(I64, ROWS))) as (whole, partly):
        with whole:
            write(None)
        with partly:
            write(e.first_lanes(left, ROWS))
    e.ret_void()
    return function


def _emit_tiles(
    kernel: "_Kernel", tiles: Sequence[int], block: Value, start: Value, end: Value
) -> None:
    """Tiles of the largest size, then at most one of each other."""
    e, largest = kernel.e, tiles[0]
    left = e.and_(e.sub(end, start), constant(I64, largest - 1))
    whole = e.sub(end, left)
    with e.loop(start, whole, largest) as token:
        kernel.tile(block, token, largest)
    token = whole
    for size in tiles[1:]:
        part = e.and_(left, constant(I64, size))
        with e.if_then(e.icmp_signed("!=", part, constant(I64, 0))):
            kernel.tile(block, token, size)
        token = e.add(token, part)


@dataclass(kw_only=True)
class _Kernel:
    """The arguments of the kernel that is being written."""

    e: Emitter
    dot: Dot
    held: PackedFormat
    weights: Value
    inputs: Value
    groups: Value
    store: Callable[[Value, Value, Value], None]  # 16 totals, their block and token

    def tile(self, block: Value, token: Value, size: int) -> None:
        """One block of rows times one tile; as many tokens at once as the registers hold."""
        count = min(size, self.e.path.tokens)
        for first in range(0, size, count):
            self._rows_by_tokens(block, token, size, range(first, first + count))

    def _rows_by_tokens(self, block: Value, token: Value, tile: int, members: range) -> None:
        e = self.e
        zero = constant(vector(F32, ROWS), 0.0)
        totals = [e.variable(zero) for _ in members]
        block_start = e.mul(block, self.groups)
        weights = e.at(self.weights, block_start, self.held.block_bytes)
        records = e.at(self.inputs, e.mul(token, self.groups), RECORD_BYTES)
        with e.loop(0, self.groups) as group:
            here = e.at(weights, group, self.held.block_bytes)
            record = e.at(records, group, tile * RECORD_BYTES)
            scales = emit_scales(e, here)
            offsets = emit_offsets(e, self.held, here)
            tokens = [e.at(record, member * RECORD_BYTES) for member in members]
            prefetches = members.start == 0 and (self.held, tile) != _RUNS_AHEAD
            sums = self._sums(here, tokens, prefetches=prefetches)
            for total, address, sum_ in zip(totals, tokens, sums, strict=True):
                scale = e.fmul(scales, e.splat(e.fetch(address, F32), ROWS))
                value = e.sitofp(sum_, vector(F32, ROWS))
                total.value = e.multiply_add(value, scale, total.value)
                if offsets is not None:
                    minus_sum = e.splat(e.fetch(e.at(address, RECORD_WORTH), F32), ROWS)
                    total.value = e.multiply_add(offsets, minus_sum, total.value)
        for member, total in zip(members, totals, strict=True):
            self.store(total.value, block, e.add(token, constant(I64, member)))

    def _sums(self, here: Value, tokens: list[Value], *, prefetches: bool) -> list[Value]:
        """Σ weight x input of a group, as integers, for each token's record.

        The first that read a group prefetch another.
        """
        e, dot = self.e, self.dot
        states: list[State] = []
        integers = e.at(here, self.held.integers_start)
        for address in tokens:
            start = constant(I32, 0)
            if dot.zero_point:  # the record has minus the sum of the inputs
                start = e.fetch(e.at(address, RECORD_SUM), I32)
                start = e.mul(start, constant(I32, dot.zero_point))
            states.append(dot.begin(e, e.splat(start, ROWS)))
        for quad, weights in emit_integers(e, self.held, integers, ROWS):
            if prefetches:
                self._prefetch(here, quad)
            for index, address in enumerate(tokens):
                inputs = e.fetch(e.at(address, RECORD_VALUES + QUAD * quad), I32)
                states[index] = dot.step(e, states[index], weights, inputs)
        return [dot.end(e, state) for state in states]

    def _prefetch(self, here: Value, quad: int) -> None:
        """An eighth of a group further ahead; all of it at once makes a product a hundredth slower."""
        e, lines, parts = self.e, range(0, self.held.block_bytes, CACHE_LINE), GROUP // QUAD
        for line in lines[quad * len(lines) // parts : (quad + 1) * len(lines) // parts]:
            e.prefetch(e.at(here, PREFETCH_BYTES + line))
