"""The kernel of attention for many tokens, each of which sees what was cached before it and itself.

A panel at a time: its keys are made columns once for all queries that see them, then a few rows of
queries at a time, neighbouring tokens of a head, are a tile over it. No score is computed for a panel
that lies behind a row's window or ahead of all its tokens. Each token gets the bits that
`attention_kernel` computes for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import (
    LANES,
    LOWEST,
    PANEL,
    SUMS,
    WIDE,
    Attended,
    Cached,
    columns_at_once,
    rows_at_once,
    rows_of,
)
from potluck.engine.kernels.attending.attention_integers import (
    SHORTS,
    TOTALS,
    add_products,
    parts_of,
    round_query,
    rounded_size,
    score,
    write_integer_columns,
)
from potluck.engine.kernels.attending.attention_pairs import Pairs, starts_in_block
from potluck.engine.kernels.attending.attention_scores import scales_floats, value_scales
from potluck.engine.kernels.attending.attention_tile import Tile
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I16,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value


class Prefill(Record):
    """The arguments of attention of many tokens. A block of the job is a head's share of the tokens."""

    queries = Address(KIND_F32)  # of the first token; (T, `row_numbers`)
    tokens = Number()
    position = Number()  # of the first token
    window = Number()  # cached tokens that a token sees, itself among them
    keys = Address(I8)  # of the first head and position 0
    values = Address(I8)
    head_stride = Number()  # bytes from one head of the cache to the next
    own_from = Number()  # the panels before this position are those that sessions share
    shared_keys = Address(I8)  # likewise, of those
    shared_values = Address(I8)
    shared_stride = Number()
    sinks = Address(KIND_F32)  # (H,), if the shape has some
    share = Number()  # tokens of a block
    scratch = Address(KIND_F32)  # `scratch_floats` for each block
    stats = Address(KIND_F32)  # (H, T, 2)
    out = Address(
        KIND_F32
    )  # (T, H, numbers of a value), zeros, because LLVM would call a C library to clear it


# Keys and values of a panel, the first of its tokens that is seen, its number of cached tokens, scratch.
_PREPARE = ir.FunctionType(VOID, [POINTER, POINTER, I64, I64, POINTER])
# Queries, values, scratch, stats, out, cached tokens in the panel, how many of them the first row sees without
# a window, window.
_ROWS = ir.FunctionType(VOID, [POINTER] * 5 + [I64] * 3)


def scratch_floats(shape: Attended, path: Path) -> int:
    """Return how many f32 the kernel uses while it runs, for each block."""
    return _Scratch(shape, path).size


@dataclass(frozen=True)
class _Scratch:
    """Where the fields of the scratch memory begin, in f32. First are the keys of a panel as columns.

    Then follow scales of keys and values, scores and queries of some rows with the scales of these, the sums that
    scores are made of, and the sums of values.
    """

    shape: Attended
    path: Path

    @property
    def rows(self) -> int:
        return rows_at_once(self.path)

    @property
    def columns(self) -> int:
        """Cached tokens whose numbers are side by side."""
        return columns_at_once(self.path) * LANES

    @property
    def column_numbers(self) -> int:
        """How many f32 or pairs a key has."""
        shape = self.shape
        if shape.has_pairs:
            return shape.padded * len(starts_in_block(self.path)) // 2
        return rounded_size(shape) // 2 if shape.has_scales else shape.padded

    @property
    def scales(self) -> int:
        return PANEL * self.shape.padded

    @property
    def scores(self) -> int:
        return self.scales + scales_floats(self.shape)

    @property
    def queries(self) -> int:
        return self.scores + self.rows * PANEL

    @property
    def query_scales(self) -> int:
        return self.queries + self.rows * (self.shape.padded + LANES)

    @property
    def sums(self) -> int:
        return self.query_scales + self.rows * LANES

    @property
    def totals(self) -> int:
        return self.sums + SUMS * self.rows * self.columns

    @property
    def size(self) -> int:
        return self.totals + self.rows * self.shape.value_padded


def emit_attend_many(module: ir.Module, name: str, path: Path, shape: Attended) -> ir.Function:
    """Write attention of many tokens: a job of the threads."""
    layout = _Scratch(shape, path)
    prepare = _emit_prepare(module, f"{name}_prepare", layout)
    some_rows = _emit_rows(module, f"{name}_rows", layout, layout.rows)
    one_row = _emit_rows(module, f"{name}_row", layout, 1)
    e, given, first, last = begin_piece(module, name, path, Prefill)
    shares = (given.tokens + given.share - 1) // given.share
    with e.loop(first, last) as block:
        kv_head, begin = block // shares, block % shares * given.share
        stop = (begin + given.share).at_most(given.tokens)
        whole = stop - (stop - begin) % layout.rows
        cached = rows_of(e, shape, given, kv_head)
        scratch = given.scratch + block * layout.size
        queries = _Queries(e, shape, given, kv_head, begin, stop)
        queries.begin()
        end = given.position + stop
        start = (given.position + begin + 1 - given.window).at_least(0)
        with e.loop(start - start % PANEL, end, PANEL) as panel:
            count = (end - panel).at_most(PANEL)
            keys, values = cached("keys", panel), cached("values", panel)
            low = (start - panel).at_least(0)
            e.call(prepare, [keys.base, values.base, low, count, scratch])
            sees = given.position + 1 - panel
            with e.loop(0, shape.group) as member:
                for rows, first, last, step in (
                    (some_rows, begin, whole, layout.rows),
                    (one_row, whole, stop, 1),
                ):
                    with e.loop(first, last, step) as token:
                        query, stats, out = queries.at(member, token)
                        numbers = [count, sees + token, given.window]
                        e.call(rows, [query, values.base, scratch, stats, out, *numbers])
        queries.divide()
    return e.end()


@dataclass(frozen=True)
class _Queries:
    """Some tokens of the heads that share a key head."""

    e: Emitter
    shape: Attended
    given: Prefill
    kv_head: Value
    first: Value
    last: Value

    def at(self, member: Value, token: Value) -> tuple[Pointer, Pointer, Pointer]:
        """Return where queries, stats and output of a head's token are."""
        given, shape = self.given, self.shape
        head = self.kv_head * shape.group + member
        queries = given.queries + token * shape.row_numbers + head * shape.query_step
        out = given.out + (token * shape.heads + head) * shape.value_dim
        return queries, given.stats + (head * given.tokens + token) * 2, out

    def begin(self) -> None:
        """Start with no token seen, but with the head's sink."""
        for e, stats, _, head in self._each():
            has_sinks = self.shape.has_sinks
            stats[0] = self.given.sinks[head] if has_sinks else e.value(constant(F32, LOWEST))
            stats[1] = constant(F32, 1.0 if has_sinks else 0.0)

    def divide(self) -> None:
        """Divide the output by the sum of the powers."""
        for e, stats, out, _ in self._each():
            inverse = e.splat(1.0 / stats[1], LANES)
            for (span,) in self.shape.each_span(e, 1):
                out[span] = out[span] * inverse

    def _each(self) -> Iterator[tuple[Emitter, Pointer, Pointer, Value]]:
        e = self.e
        with e.loop(0, self.shape.group) as member, e.loop(self.first, self.last) as token:
            _, stats, out = self.at(member, token)
            yield e, stats, out, self.kv_head * self.shape.group + member


def _emit_prepare(module: ir.Module, name: str, layout: _Scratch) -> ir.Function:
    """Write the function that turns the keys of a panel into columns, with tokens side by side."""
    e = Emitter(internal(ir.Function(module, _PREPARE, name)), layout.path)
    shape, columns = layout.shape, layout.columns
    keys, values, low, count, scratch = e.arguments
    keys, values, scratch = Cached(e, shape, keys), Cached(e, shape, values), scratch.of(KIND_F32)
    with e.loop(low - low % columns, count, LANES) as first:
        # Others are not cached.
        tokens = [(first + lane).at_least(low).at_most(count - 1) for lane in range(LANES)]
        inside = first % columns
        target = scratch + (first - inside) * layout.column_numbers + inside
        if shape.has_scales:
            write_integer_columns(shape, columns, keys, tokens, target)
        else:
            _write_columns(layout, keys, tokens, target)
    if shape.has_scales:
        scales = scratch + layout.scales
        with e.loop(low, count) as token:
            for index, part in enumerate(parts_of(shape)):
                scales[token + index * PANEL] = part.key_scale(keys, token)
            if shape.rank is None:
                value_scales(shape, scales)[token] = values.scale(token)
    return e.end()


def _write_columns(layout: _Scratch, keys: Cached, tokens: list[Value], target: Pointer) -> None:
    """Write the f32 of some keys, a number of all tokens after the other."""
    e, columns = keys.e, layout.columns
    for (span,) in layout.shape.each_span(e, 1, layout.shape.head_dim):
        column, rows = span.first, e.transpose([keys.at(token)[span] for token in tokens])
        if layout.shape.has_pairs:
            column, rows = Pairs(e).spans(span.first)[0].first, Pairs(e).columns(rows)
        for index, numbers in enumerate(rows):
            (target + (column + index) * columns).of(WIDE)[0] = numbers


def _emit_rows(module: ir.Module, name: str, layout: _Scratch, rows: int) -> ir.Function:
    """Write attention of some neighbouring tokens of a head over a panel."""
    e = Emitter(internal(ir.Function(module, _ROWS, name)), layout.path)
    shape = layout.shape
    queries, values, scratch, stats, out, count, sees, window = e.arguments
    scratch = scratch.of(KIND_F32)

    def seen_by(row: Operand) -> tuple[Value, Value]:
        return (sees + row - window).at_least(0), (sees + row).at_most(count)

    tile = Tile(
        shape=shape,
        rows=rows,
        values=Cached(e, shape, values),
        scores=scratch + layout.scores,
        value_scales=value_scales(shape, scratch + layout.scales),
        stats=stats.of(KIND_F32),
        totals=scratch + layout.totals,
        seen_by=seen_by,
        merged=(out.of(KIND_F32), shape.heads * shape.value_dim),
    )
    low, high = seen_by(0)[0], seen_by(rows - 1)[1]
    with e.if_then(low < high):
        with e.loop(0, rows) as row:
            _read_query(e, layout, queries.of(KIND_F32) + row * shape.row_numbers, scratch, row)
        (_score_integers if shape.has_scales else _score)(tile, layout, scratch, (low, high))
        tile.attend(low, high)
    return e.end()


def _read_query(
    e: Emitter, layout: _Scratch, source: Pointer, scratch: Pointer, row: Value
) -> None:
    """Copy a row of queries, with zeros after its last number; or round it."""
    shape = layout.shape
    if shape.has_scales:
        out = (scratch + layout.queries).of(I16) + row * rounded_size(shape)
        round_query(e, shape, source, out, scratch + layout.query_scales + row * LANES)
        return
    out = scratch + layout.queries + row * shape.padded
    for (span,) in shape.each_span(e, 1, shape.head_dim):
        if shape.has_pairs:
            Pairs(e).write(source, span, out)
        else:
            out[Span(span.first, LANES)] = source[span]


def _score_integers(
    tile: Tile, layout: _Scratch, scratch: Pointer, bounds: tuple[Value, Value]
) -> None:
    """Write the scores of the tokens from low to high over an int8 cache, as `_score` does."""
    e, shape, (low, high) = tile.values.e, tile.shape, bounds
    columns, vectors, size = layout.columns, layout.columns // LANES, rounded_size(shape)
    places = [(row, part) for row in range(tile.rows) for part in range(vectors)]
    queries, scales = scratch + layout.queries, scratch + layout.scales
    parts = parts_of(shape)
    with e.loop(low - low % columns, high, columns) as token:
        keys = scratch + token * (size // 2)
        totals = [{place: e.variable(constant(TOTALS, 0)) for place in places} for _ in parts]
        for sums, part in zip(totals, parts, strict=True):
            with e.loop(part.rounded // 2, (part.rounded + part.padded) // 2) as pair:
                column = (keys + pair * columns).of(TOTALS)
                numbers = [e.bitcast(column[index], SHORTS) for index in range(vectors)]
                for row in range(tile.rows):
                    query = (queries.of(I16) + row * size).of(I32)[pair]
                    both = e.bitcast(e.splat(query, LANES), SHORTS)
                    for index, some in enumerate(numbers):
                        total = sums[row, index]
                        total.value = add_products(e, total.value, some, both)
        for row, index in places:
            here = Span(token + index * LANES, LANES)
            query_scales = scratch + layout.query_scales + row * LANES
            (tile.scores + row * PANEL)[here] = score(
                e,
                [sums[row, index].value for sums in totals],
                [(scales + number * PANEL)[here] for number in range(len(parts))],
                [query_scales[number] for number in range(len(parts))],
            )


def _score(tile: Tile, layout: _Scratch, scratch: Pointer, bounds: tuple[Value, Value]) -> None:
    """Write the scores of the tokens from low to high, as many at a time as a row of columns has."""
    e, shape, (low, high) = tile.values.e, tile.shape, bounds
    columns, sums = layout.columns, scratch + layout.sums
    with e.loop(low - low % columns, high, columns) as token:
        keys = scratch + token * layout.column_numbers
        with e.loop(0, SUMS) as lane:
            _sum_lane(tile, layout, keys, scratch + layout.queries, (lane, sums))
        with e.loop(0, tile.rows) as row:
            for part in range(0, columns, LANES):
                here = Span(token + part, LANES)
                parts = [
                    (sums + lane * (tile.rows * columns) + row * columns)[Span(part, LANES)]
                    for lane in range(SUMS)
                ]
                while half := len(parts) // 2:  # as `total_of_each` adds lanes
                    parts = [parts[lane] + parts[lane + half] for lane in range(half)]
                (tile.scores + row * PANEL)[here] = parts[0] * shape.scale


def _sum_lane(
    tile: Tile,
    layout: _Scratch,
    keys: Pointer,
    queries: Pointer,
    target: tuple[Value, Pointer],
) -> None:
    """Write one of the `SUMS` sums of which a score is made, for a row of columns and all rows of the tile."""
    e, shape, (lane, sums) = tile.values.e, tile.shape, target
    vectors = layout.columns // LANES
    pairs = [(row, part) for row in range(tile.rows) for part in range(vectors)]
    totals = {pair: e.value(constant(WIDE, 0.0)) for pair in pairs}
    starts = starts_in_block(e.path) if shape.has_pairs else range(1)
    for first in range(0, layout.column_numbers, SUMS * len(starts)):
        places = [lane + (first + start) for start in starts]
        columns = [(keys + place * layout.columns).of(WIDE) for place in places]
        parts = [[column[part] for column in columns] for part in range(vectors)]
        for row in range(tile.rows):
            query = [e.splat((queries + row * shape.padded)[place], LANES) for place in places]
            for part, numbers in enumerate(parts):
                total = totals[row, part]
                if shape.has_pairs:
                    totals[row, part] = Pairs(e).add(total, query, numbers)
                else:
                    totals[row, part] = e.multiply_add(query[0], numbers[0], total)
    out = sums + lane * (tile.rows * layout.columns)
    for (row, part), total in totals.items():
        out[Span(row * layout.columns + part * LANES, LANES)] = total
