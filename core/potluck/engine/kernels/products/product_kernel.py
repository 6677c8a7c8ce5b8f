"""The kernel of products: x Wᵀ of a quantised input and packed weights, for some blocks of rows.

For each block of 16 rows and each tile of tokens: for each group of 32 inputs, the kernel unpacks the weights
once, sums weight x input as integers for each token, and adds sum x scale of the weights x scale of the
input to the token's 16 totals, f32. A format with offsets then adds offset x (scale of the input x minus the
sum of its integers), which the record of the input has. Where scales and offsets are multiples of steps, all of
this is done for a super-block as if the steps were 1.
One token reads the weights as fast as memory gives them. With many tokens, a block stays in the processor's
first cache while a panel of tokens passes by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

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
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.block_kernel import Block, BlockRow
from potluck.engine.kernels.products.dots import Dot, State, make_dot
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import INT8, PackedFormat

# How far ahead weights are prefetched, to the second cache. One core of an AMD EPYC (Zen 5), int4: 34 GB/s without, 35
# at 2048, 38 at 4096, 40 at 8192; only reading gets 42; the same to the first cache. Of an Intel Xeon: 13.8 without,
# 14.8 at 2048, 15.0 at 4096, 14.8 at 6144, reading 14.9; to the first cache 14.8, 13.8 and 13.4. Not faster: several
# groups at a time, loads of whole cache lines, two streams, fewer lines.
_FAR_BYTES = 4096
# Where `Path.reads_near`. One core of an AMD EPYC (Zen 2), int4 with steps: 12.8 GB/s without, 16.0 at 512, 15.1 at 1024,
# 13.6 at 2048, 14.3 at 4096, reading 17.4; with offsets 16.5 at 512, 17.2 at 1024, 14.9 at 4096; int8 16.0 without, 17.1,
# 17.5 and 15.0. Of codes, which take more to unpack, a layer is 7 % slower with 1024 than with 4096.
_NEAR_BYTES, _NEAR_BYTES_OF_STEPS = 1024, 512
# The format and the number of tokens for which nothing is prefetched far: 40 GB/s without, 37 with. So little is
# computed for each line that the processor itself reads far enough ahead.
_RUNS_AHEAD = (INT8, 1)
# Tokens whose inputs stay in the second cache. With 64 it is a twentieth slower, with 256 not faster.
PANEL = 128

_WIDE = vector(F32, ROWS)
_ZEROS = constant(_WIDE, 0.0)
_Inputs: TypeAlias = Callable[[Value], list[Pointer]]
"""The record of each token, of a group."""


class PackedProduct(Record):
    """The arguments of the product. A block of the job is a block of 16 rows."""

    weights = Address(I8)
    inputs = Address(I8)  # the records of a quantised input
    out = Address(KIND_F32)  # (tokens, rows)
    addend = Address(KIND_F32)  # (rows,) or (tokens, rows), or null
    stride = Number()  # numbers from one token's addend to the next's
    groups = Number()
    rows = Number()
    tokens = Number()


# 16 totals, out, addend or null, rows, `stride`, block of rows, token.
_FINISH = ir.FunctionType(VOID, [_WIDE, POINTER, POINTER, I64, I64, I64, I64])


def emit_product(
    module: ir.Module,
    name: str,
    path: Path,
    weight_format: PackedFormat,
    tiles: Sequence[int] = TILES,
) -> ir.Function:
    """Write out[t, n] = Σ x[t, k] W[n, k] + addend[t, n], for the rows n of some blocks: a job of the threads.

    A kernel that is never given many tokens needs only the smallest of the tiles.
    """
    finish = _emit_finish(module, f"{name}_finish", path)
    e, given, first, last = begin_piece(module, name, path, PackedProduct)
    dot = make_dot(path, weight_format)
    kernel = _Kernel(e=e, dot=dot, held=weight_format, given=given, finish=finish)
    with e.loop(0, given.tokens, PANEL) as start:
        end = (start + PANEL).at_most(given.tokens)
        with e.loop(first, last) as block:
            kernel.tiles(tiles, block, start, end)
    return e.end()


def _emit_finish(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Write the function that adds the addend, if any, and stores a token's 16 rows, or fewer at the end."""
    e = Emitter(internal(ir.Function(module, _FINISH, name)), path)
    total, out, addend, rows, stride, block, token = e.arguments
    row = block * ROWS
    out = out.of(KIND_F32) + (token * rows + row)
    more = addend.of(KIND_F32) + (token * stride + row)
    left = rows - row

    def write(mask: Value | None) -> None:
        span, result = Span(0, ROWS, mask), e.variable(total)
        with e.if_then(addend.is_set):
            result.value = total + more[span]
        out[span] = result.value

    with e.if_else(left >= ROWS) as (whole, partly):
        with whole:
            write(None)
        with partly:
            write(e.first_lanes(left, ROWS))
    return e.end()


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """The kernel that is being written."""

    e: Emitter
    dot: Dot
    held: PackedFormat
    given: PackedProduct
    finish: ir.Function

    def tiles(self, sizes: Sequence[int], block: Value, start: Value, end: Value) -> None:
        """The tokens from start to end: tiles of the largest size, then at most one of each other."""
        largest = sizes[0]
        left = (end - start) & (largest - 1)
        token = end - left
        with self.e.loop(start, token, largest) as whole:
            self._tile(block, whole, largest)
        for size in sizes[1:]:
            part = left & size
            with self.e.if_then(part.differs(0)):
                self._tile(block, token, size)
            token = token + part

    def _tile(self, block: Value, token: Value, size: int) -> None:
        """One block of rows times one tile; as many tokens at once as the registers hold."""
        e, count = self.e, min(size, self.e.path.tokens)
        prefetches = e.path.reads_near or (self.held, size) != _RUNS_AHEAD
        self._rows_by_tokens(
            block, token, size, [e.index(i) for i in range(count)], prefetches=prefetches
        )
        if size > count:
            with e.loop(count, size, count) as first:
                members = [first + i for i in range(count)]
                self._rows_by_tokens(block, token, size, members, prefetches=False)

    def _rows_by_tokens(
        self, block: Value, token: Value, tile: int, members: list[Value], *, prefetches: bool
    ) -> None:
        e, given = self.e, self.given
        totals = [e.variable(_ZEROS) for _ in members]
        records = given.inputs.skip(token * given.groups, RECORD_BYTES)

        def inputs(group: Value) -> list[Pointer]:
            record = records.skip(group, tile * RECORD_BYTES)
            return [record.skip(member, RECORD_BYTES) for member in members]

        row = BlockRow.of(self.held, given.weights, block, given.groups)
        add = self._add_super_blocks if self.held.has_steps else self._add_blocks
        add(row, inputs, totals, prefetches=prefetches)
        for member, total in zip(members, totals, strict=True):
            place = [given.out, given.addend, given.rows, given.stride, block, token + member]
            e.call(self.finish, [total.value, *place])

    def _add_blocks(
        self, row: BlockRow, inputs: _Inputs, totals: Sequence[Variable], *, prefetches: bool
    ) -> None:
        """Add all groups of a row of blocks to each token's 16 totals."""
        e = self.e
        with row.each() as (group, here):
            tokens = inputs(group)
            scales, offsets = here.scales, here.offsets
            states = self._summed(here, tokens, prefetches=prefetches)
            for total, x, state in zip(totals, tokens, states, strict=True):
                sums = e.sitofp(self.dot.end(e, state), _WIDE)
                total.value = e.multiply_add(sums, scales * _scale(x), total.value)
                if offsets is not None:
                    total.value = e.multiply_add(offsets, _minus_sum(x), total.value)

    def _add_super_blocks(
        self, row: BlockRow, inputs: _Inputs, totals: Sequence[Variable], *, prefetches: bool
    ) -> None:
        """The same where scales and offsets are multiples: steps multiply only the sums of a super-block.

        Per token, this takes fewer instructions than scales of each group's own.
        """
        e = self.e
        of_scales, of_offsets = ([e.variable(_ZEROS) for _ in totals] for _ in range(2))
        with row.each_super_block() as super_block:
            for one in (*of_scales, *of_offsets):
                one.value = e.value(_ZEROS)
            with super_block.each() as (group, here):
                tokens = inputs(group)
                scales, offsets = here.multiples
                states = self._summed(here, tokens, prefetches=prefetches)
                for one, other, x, state in zip(of_scales, of_offsets, tokens, states, strict=True):
                    sums = self.dot.multiplied(e, state, scales)
                    one.value = e.multiply_add(sums, _scale(x), one.value)
                    whole = e.uitofp(offsets, _WIDE)
                    other.value = e.multiply_add(whole, _minus_sum(x), other.value)
            steps = super_block.steps
            for total, *parts in zip(totals, of_scales, of_offsets, strict=True):
                for step, part in zip(steps, parts, strict=True):
                    total.value = e.multiply_add(part.value, step, total.value)

    def _summed(self, here: Block, tokens: list[Pointer], *, prefetches: bool) -> list[State]:
        """Sum weight x input of a group, for each token's record."""
        e, dot = self.e, self.dot
        states: list[State] = []
        for x in tokens:
            start = e.value(constant(I32, 0))
            if dot.zero_point:  # the record has minus the sum of the inputs
                start = x.skip(RECORD_SUM).of(I32)[0] * dot.zero_point
            states.append(dot.begin(e, e.splat(start, ROWS)))
        for quad, weights in here.integers(0, ROWS):
            if prefetches:
                self._prefetch(here.start, quad)
                if len(tokens) == 1:
                    e.keep_order()
            for index, x in enumerate(tokens):
                inputs = x.skip(RECORD_VALUES + QUAD * quad).of(I32)[0]
                states[index] = dot.step(e, states[index], weights, inputs)
        return states

    def _prefetch(self, here: Pointer, quad: int) -> None:
        """Prefetch an eighth of a later group.

        All of it at once, where LLVM puts it unless it has to keep the order, makes a product for one token 4 %
        slower. Many tokens compute for longer than a group is read, and the order takes registers from them.
        """
        lines, parts = range(0, self.held.block_bytes, CACHE_LINE), GROUP // QUAD
        for line in lines[quad * len(lines) // parts : (quad + 1) * len(lines) // parts]:
            here.skip(self._ahead + line).prefetch()

    @property
    def _ahead(self) -> int:
        """Bytes from what is read to what is prefetched."""
        if not self.e.path.reads_near or self.held.codes is not None:
            return _FAR_BYTES
        return _NEAR_BYTES_OF_STEPS if self.held.has_steps else _NEAR_BYTES


def _scale(x: Pointer) -> Value:
    """The scale of a token's record, in all lanes."""
    return x.e.splat(x.of(KIND_F32)[0], ROWS)


def _minus_sum(x: Pointer) -> Value:
    """Minus the sum of the input of a token's record, in all lanes."""
    return x.e.splat(x.skip(RECORD_WORTH).of(KIND_F32)[0], ROWS)
