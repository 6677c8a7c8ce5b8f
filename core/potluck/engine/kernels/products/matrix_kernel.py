"""The kernels of products of many tokens with a matrix of f32, with the bits that `float_kernel` has for one.

Each number of the result is the sum of `F32_SUMS` sums, each of every `F32_SUMS`th product, which are added
half to half. Here several tokens are multiplied with a panel, some rows of weights side by side in vectors, and
their sums are computed one after the other: in such an order that two which are to be added follow each
other. Tokens and rows are copied first, so that the numbers of a sum are neighbours.

Measured on one core, in products of 512 tokens with 16.8 million weights, against torch with as wide vectors:
0.87 to 0.99 of its speed with AVX-512, 0.83 to 0.87 with AVX2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.float_kernel import F32_SUMS
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value

_LANES = 16
_WIDE = vector(F32, _LANES)
_LEVELS = F32_SUMS.bit_length() - 1  # in which sums are added


@dataclass(frozen=True, slots=True)
class Tiling:
    """How many numbers of the result are computed at once: what the registers hold."""

    tiles: tuple[int, ...]  # tokens multiplied at once, most first
    together: int  # tokens that are side by side: what all tiles are multiples of
    vectors: int  # of rows of weights, each of `_LANES`

    @property
    def rows(self) -> int:
        """Rows of weights of a panel."""
        return self.vectors * _LANES

    def arranged_floats(self, tokens: int, width: int) -> int:
        """How many f32 the tokens of a product take."""
        return -(-tokens // self.together) * self.together * _padded(width)

    def scratch_floats(self, width: int) -> int:
        """How many f32 a block of the product uses: a panel, then the sums of a tile that wait for others."""
        return self.rows * (_padded(width) + self.tiles[0] * (_LEVELS + 1))


def tiling(path: Path) -> Tiling:
    """Return the fastest tiling of a path, as measured."""
    if path.registers >= 32:
        return Tiling(tiles=(12, 8, 4), together=4, vectors=2)
    tokens = 6 if path.registers >= 8 else 2
    return Tiling(tiles=(tokens,), together=tokens, vectors=1)


class Arrange(Record):
    """The arguments of copying tokens. A block of the job is `together` tokens."""

    source = Address(KIND_F32)  # (tokens, width)
    tokens = Number()
    width = Number()
    out = Address(KIND_F32)  # `arranged_floats`


class MatrixProduct(Record):
    """The arguments of the product. A block of the job is `share` panels."""

    weights = Address(KIND_F32)
    stride = Number()  # numbers from one row to the next
    inputs = Address(KIND_F32)  # the tokens, as `Arrange` leaves them
    out = Address(KIND_F32)  # (tokens, rows)
    addend = Address(KIND_F32)  # (rows,), or null
    rows = Number()
    width = Number()
    tokens = Number()
    share = Number()
    scratch = Address(KIND_F32)  # `scratch_floats` for each block


def emit_arrange(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Copy tokens: the numbers of one sum after the other, each of some tokens side by side."""
    e, given, first, last = begin_piece(module, name, path, Arrange)
    together = tiling(path).together
    some, terms = vector(F32, together), _terms(given.width)
    with e.loop(first, last) as block:
        tokens = [block * together + lane for lane in range(together)]
        sources = [given.source + token.at_most(given.tokens - 1) * given.width for token in tokens]
        out = (given.out + block * (terms * (F32_SUMS * together))).of(some)
        for place, number in enumerate(_order()):
            with e.loop(0, terms) as term:
                column = term * F32_SUMS + number
                numbers = e.variable(constant(some, 0.0))
                with e.if_then(column < given.width):
                    for lane, source in enumerate(sources):
                        index = constant(I32, lane)
                        numbers.value = e.insert_element(numbers.value, source[column], index)
                out[terms * place + term] = numbers.value
    return e.end()


def emit_matrix_product(module: ir.Module, name: str, path: Path) -> ir.Function:
    """out[t, n] = Σ x[t, k] W[n, k] + addend[n], for the rows n of some blocks: a job of the threads."""
    sizes = tiling(path)
    copy = _emit_panel(module, f"{name}_panel", path)
    tiles = [_emit_tile(module, f"{name}_tile{tile}", path, tile) for tile in sizes.tiles]
    e, given, first, last = begin_piece(module, name, path, MatrixProduct)
    terms, rows = _terms(given.width), sizes.rows
    panel_floats = terms * (F32_SUMS * rows)
    waiting_floats = rows * sizes.tiles[0] * (_LEVELS + 1)
    with e.loop(first, last) as block:
        panel = given.scratch + block * (panel_floats + waiting_floats)
        begin = block * given.share * rows
        end = (begin + given.share * rows).at_most(given.rows)
        with e.loop(begin, end, rows) as row:
            source, left = given.weights + row * given.stride, given.rows - row
            e.call(copy, [source, given.stride, left, given.width, panel])
            token = e.variable(e.index(0))
            for tile, size in zip(tiles, sizes.tiles, strict=True):
                # The last tile may have fewer tokens than were copied.
                with e.loop(token.value, given.tokens - (size - sizes.together), size) as here:
                    x, out = given.inputs + here * (terms * F32_SUMS), given.out + here * given.rows
                    addend = e.select(given.addend.is_set, given.addend + row, given.addend)
                    places = [x, panel, panel + panel_floats, out + row, addend]
                    e.call(tile, [*places, terms, given.rows, left, given.tokens - here])
                    token.value = here + size
    return e.end()


def _padded(width: int) -> int:
    return -(-width // F32_SUMS) * F32_SUMS


def _terms(width: Value) -> Value:
    """Return how many products each sum is made of."""
    return (width + (F32_SUMS - 1)) // F32_SUMS


def _order() -> list[int]:
    """Return an order of the sums in which halves follow each other: 0, 16, 8, 24, 4, 20 and so on."""
    order = [0]
    while len(order) < F32_SUMS:
        order = [2 * one + odd for odd in range(2) for one in order]
    return order


# Rows of weights, numbers from one to the next, how many rows are left, width, where to copy them.
_PANEL = ir.FunctionType(VOID, [POINTER, I64, I64, I64, POINTER])


def _emit_panel(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Write the function that copies rows of weights: side by side, the columns of one sum after the other."""
    e = Emitter(internal(ir.Function(module, _PANEL, name)), path)
    source, stride, left, width, out = e.arguments
    source, out = source.of(KIND_F32), out.of(_WIDE)
    vectors, terms = tiling(path).vectors, _terms(width)
    places = {number: place for place, number in enumerate(_order())}

    def copy(column: Value, start: int, mask: Value | None) -> None:
        for part in range(vectors):
            rows = [e.index(part * _LANES + lane).at_most(left - 1) for lane in range(_LANES)]
            numbers = [(source + row * stride)[Span(column, _LANES, mask)] for row in rows]
            for index, turned in enumerate(e.transpose(numbers)):
                place = terms * places[start + index] + column // F32_SUMS
                out[place * vectors + part] = turned

    for start in range(0, F32_SUMS, _LANES):
        inside = (width - (start + _LANES - 1)).at_least(0)  # columns where whole vectors begin
        whole = _terms(inside) * F32_SUMS + start
        with e.loop(start, whole, F32_SUMS) as column:
            copy(column, start, None)
        with e.loop(whole, terms * F32_SUMS, F32_SUMS) as column:
            copy(column, start, e.first_lanes(width - column, _LANES))
    return e.end()


# Tokens, a panel, memory, out, addend or null; terms of a sum, numbers of a token's output, rows left, tokens left.
_TILE = ir.FunctionType(VOID, [POINTER] * 5 + [I64] * 4)


def _emit_tile(module: ir.Module, name: str, path: Path, size: int) -> ir.Function:
    """Write the function that multiplies so many tokens with a panel."""
    e = Emitter(internal(ir.Function(module, _TILE, name)), path)
    x, panel, memory, out, addend, terms, stride, left, tokens = e.arguments
    x, panel, waiting = x.of(KIND_F32), panel.of(_WIDE), memory.of(_WIDE)
    count = size * tiling(path).vectors
    totals = [e.variable(constant(_WIDE, 0.0)) for _ in range(count)]
    with e.loop(0, F32_SUMS, 2) as place:
        for index, one in enumerate(_emit_sums(e, x, panel, place * terms, terms, size)):
            waiting[index] = one.value
        for index, one in enumerate(_emit_sums(e, x, panel, (place + 1) * terms, terms, size)):
            totals[index].value = waiting[index] + one.value
        _add_levels(e, totals, waiting, place // 2)
    for token in range(size):
        with e.if_then(tokens > token):
            some = totals[token * count // size : (token + 1) * count // size]
            _write(e, some, out.of(KIND_F32) + stride * token, addend.of(KIND_F32), left)
    return e.end()


def _emit_sums(
    e: Emitter, x: Pointer, panel: Pointer, start: Value, terms: Value, size: int
) -> list[Variable]:
    """Sum the products from term `start` of each token and each vector of the panel."""
    sizes = tiling(e.path)
    vectors, together = sizes.vectors, sizes.together
    sums = [e.variable(constant(_WIDE, 0.0)) for _ in range(size * vectors)]
    panel = panel + start * vectors
    inputs = [
        x + (terms * (F32_SUMS * first) + start * together) for first in range(0, size, together)
    ]
    with e.loop(0, terms) as term:
        columns = [panel[term * vectors + part] for part in range(vectors)]
        for token in range(size):
            group, lane = divmod(token, together)
            number = e.splat(inputs[group][term * together + lane], _LANES)
            for part, column in enumerate(columns):
                one = sums[token * vectors + part]
                one.value = e.multiply_add(number, column, one.value)
    return sums


def _add_levels(e: Emitter, totals: Sequence[Variable], waiting: Pointer, pair: Value) -> None:
    """Add sums of this pair to those that wait for it, at each level that is complete; then they wait."""
    level, left = e.variable(e.index(1)), e.variable(pair)
    with e.forever() as leave:
        leave((left.value & 1).equals(0))
        for index, total in enumerate(totals):
            total.value = waiting[level.value * len(totals) + index] + total.value
        level.value, left.value = level.value + 1, left.value >> 1
    for index, total in enumerate(totals):
        waiting[level.value * len(totals) + index] = total.value


def _write(
    e: Emitter, totals: Sequence[Variable], out: Pointer, addend: Pointer, left: Operand
) -> None:
    """Write a token's numbers of a panel, of which `left` are there."""
    for part, total in enumerate(totals):
        first = part * _LANES
        with e.if_then(left > first):
            span = Span(first, _LANES, e.first_lanes(left - first, _LANES))
            with e.if_then(addend.is_set):
                total.value = total.value + addend[span]
            out[span] = total.value
