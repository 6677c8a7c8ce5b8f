"""The kernel of attention for many tokens, each of which sees what was cached before it and itself.

A panel of cached tokens at a time: its keys are turned into columns once for all heads that share them,
then a few rows of queries at a time find their scores, their softmax so far, and add their values to the
output; what earlier panels gave is scaled down when a higher score appears (https://arxiv.org/abs/2205.14135).
No score is computed for a panel that lies behind a row's window or ahead of all its tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import LANES, Heads
from potluck.engine.kernels.emit import (
    F32,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    KIND_INT8,
    POINTER,
    VOID,
    Emitter,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.functions import emit_exp, emit_tanh
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE

PANEL = (
    256  # cached tokens: keys of 64 numbers take 64 kB as columns, which stay in the second cache
)
_WIDE = vector(F32, LANES)
_LOWEST = -1e30  # below any score; not infinite, so that differences are numbers

# 8 bytes each. Queries are the first of each token's heads of queries, keys and values; keys and values
# those of position 0, bytes from head to head beside them. Scratch is `scratch_floats` for each key head,
# stats are two numbers for each head and token. The output has to be zero: here, LLVM would call a
# library for that.
PREFILL_FIELDS = (
    "queries", "tokens", "position", "window", "keys", "values", "head_stride", "scratch", "stats",
    "out",
)  # fmt: skip
_POINTERS = {"queries", "keys", "values", "scratch", "stats", "out"}

# keys, values, cached tokens, scratch
_PREPARE = ir.FunctionType(VOID, [POINTER, POINTER, I64, POINTER])
# queries, values, scratch, stats, out, cached tokens in the panel, how many of them the first row sees
# if no window ends before, window
_ROWS = ir.FunctionType(VOID, [POINTER] * 5 + [I64] * 3)


Part = tuple[Value, Value | None]
"""The number of a vector of a head, and the mask of what is there of it; None: it is whole."""


@dataclass(frozen=True)
class _Layout:
    """Where things stand in the scratch of a key head, and how much is done at a time."""

    shape: Heads
    path: Path

    @property
    def rows(self) -> int:
        """Queries whose scores are found together; with `columns`, half of the registers."""
        return {32: 8, 8: 6}.get(self.path.registers, 2)

    @property
    def columns(self) -> int:
        """Vectors that each row is multiplied with at a time."""
        return 2 if self.path.registers >= 32 else 1

    @property
    def block(self) -> int:
        """Cached tokens of these columns."""
        return self.columns * LANES

    @property
    def vectors(self) -> int:
        """Of a head."""
        return -(-self.shape.head_dim // LANES)

    @property
    def padded(self) -> int:
        return self.vectors * LANES

    @property
    def scores(self) -> int:
        return PANEL * self.padded

    @property
    def scales(self) -> int:
        return self.scores + self.rows * PANEL

    @property
    def queries(self) -> int:
        return self.scales + PANEL

    @property
    def size(self) -> int:
        return self.queries + self.rows * self.padded

    @property
    def has_scales(self) -> bool:
        return self.shape.cache_kind == KIND_INT8

    def parts(self, e: Emitter, count: int) -> Iterator[list[Part]]:
        """A head's vectors, so many at a time: code once for those that are whole, in a loop."""
        whole = self.shape.head_dim // (LANES * count) * count
        with e.loop(0, whole, count) as first:
            yield [(e.add(first, constant(I64, index)), None) for index in range(count)]
        for start in range(whole, self.vectors, count):
            numbers = range(start, min(start + count, self.vectors))
            yield [(constant(I64, number), self._mask(e, number)) for number in numbers]

    def _mask(self, e: Emitter, part: int) -> Value | None:
        left = self.shape.head_dim - part * LANES
        return None if left >= LANES else e.first_lanes(constant(I64, left), LANES)


def scratch_floats(shape: Heads, path: Path) -> int:
    """What the kernel writes to while it runs, for each key head."""
    return _Layout(shape, path).size


def emit_attend_many(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Attention of the key heads from first to last: a job of the pool."""
    layout = _Layout(shape, path)
    prepare = _emit_prepare(module, f"{name}_prepare", layout)
    some_rows = _emit_rows(module, f"{name}_rows", layout, layout.rows)
    one_row = _emit_rows(module, f"{name}_row", layout, 1)
    function = ir.Function(module, PIECE, name)
    arguments, first, last = function.args
    e = Emitter(function, path)
    given = {
        field: e.fetch(e.at(arguments, 8 * index), POINTER if field in _POINTERS else I64)
        for index, field in enumerate(PREFILL_FIELDS)
    }
    tokens, position, window = given["tokens"], given["position"], given["window"]
    end = e.add(position, tokens)
    start = _at_least_zero(e, e.sub(e.add(position, constant(I64, 1)), window))
    whole = e.sub(tokens, e.srem(tokens, constant(I64, layout.rows)))
    with e.loop(first, last) as kv_head:
        keys, values = (
            e.at(given[which], kv_head, given["head_stride"]) for which in ("keys", "values")
        )
        scratch = e.at(given["scratch"], kv_head, 4 * layout.size)
        head = e.mul(kv_head, constant(I64, shape.group))
        heads = _Heads(e=e, layout=layout, given=given, first=head)
        heads.begin()
        with e.loop(start, end, PANEL) as panel:
            count = _least(e, e.sub(end, panel), constant(I64, PANEL))
            here = [e.at(cached, panel, shape.cached_bytes) for cached in (keys, values)]
            e.call(prepare, [*here, count, scratch])
            sees = e.sub(e.add(position, constant(I64, 1)), panel)
            with e.loop(0, shape.group) as member:
                for rows, low, high, step in (
                    (some_rows, constant(I64, 0), whole, layout.rows),
                    (one_row, whole, tokens, 1),
                ):
                    with e.loop(low, high, step) as token:
                        queries, stats, out = heads.at(member, token)
                        numbers = [count, e.add(sees, token), window]
                        e.call(rows, [queries, here[1], scratch, stats, out, *numbers])
        heads.divide()
    e.ret_void()
    return function


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """The heads that share a key head."""

    e: Emitter
    layout: _Layout
    given: dict[str, Value]
    first: Value

    def at(self, member: Value, token: Value) -> tuple[Value, Value, Value]:
        """Where queries, stats and output of a head's token stand."""
        e, given, shape = self.e, self.given, self.layout.shape
        head = e.add(self.first, member)
        queries = e.at(given["queries"], token, _row_bytes(shape))
        row = e.add(e.mul(head, given["tokens"]), token)
        out = e.at(given["out"], token, _out_bytes(shape))
        size = 4 * shape.head_dim
        return e.at(queries, head, size), e.at(given["stats"], row, 8), e.at(out, head, size)

    def begin(self) -> None:
        e = self.e
        with e.loop(0, self.layout.shape.group) as member, e.loop(0, self.given["tokens"]) as token:
            _, stats, _ = self.at(member, token)
            e.put(constant(F32, _LOWEST), stats)
            e.put(constant(F32, 0.0), e.at(stats, 4))

    def divide(self) -> None:
        """By the sum of the powers."""
        e = self.e
        with e.loop(0, self.layout.shape.group) as member, e.loop(0, self.given["tokens"]) as token:
            _, stats, out = self.at(member, token)
            inverse = e.fdiv(constant(F32, 1.0), e.fetch(e.at(stats, 4), F32))
            factor = e.splat(inverse, LANES)
            for ((part, mask),) in self.layout.parts(e, 1):
                here = e.at(out, part, 4 * LANES)
                value = e.fmul(e.fetch_numbers(here, KIND_F32, LANES, mask), factor)
                e.put_numbers(value, here, KIND_F32, mask)


def _emit_prepare(module: ir.Module, name: str, layout: _Layout) -> ir.Function:
    """Keys as columns, the numbers of a block of tokens side by side; and the scales of the values."""
    function = internal(ir.Function(module, _PREPARE, name))
    keys, values, count, scratch = function.args
    e, shape = Emitter(function, layout.path), layout.shape
    final = e.sub(count, constant(I64, 1))
    with e.loop(0, count, LANES) as first:
        tokens = [_least(e, e.add(first, constant(I64, lane)), final) for lane in range(LANES)]
        rows = [e.at(keys, token, shape.cached_bytes) for token in tokens]
        inside = e.srem(first, constant(I64, layout.block))
        block = e.at(scratch, e.sub(first, inside), 4 * layout.padded)
        target = e.at(block, inside, 4)
        for (part,) in layout.parts(e, 1):
            numbers = [_fetch_part(e, layout, row, part) for row in rows]
            if layout.has_scales:
                scales = [_scale_of(e, shape, row) for row in rows]
                pairs = zip(numbers, scales, strict=True)
                numbers = [e.fmul(some, e.splat(scale, LANES)) for some, scale in pairs]
            columns = e.at(target, part[0], 4 * layout.block * LANES)
            for index, column in enumerate(e.transpose(numbers)):
                e.put(column, e.at(columns, 4 * layout.block * index))
        if layout.has_scales:
            for lane, token in enumerate(tokens):
                scale = _scale_of(e, shape, e.at(values, token, shape.cached_bytes))
                e.put(scale, e.at(e.at(scratch, 4 * (layout.scales + lane)), first, 4))
    e.ret_void()
    return function


def _emit_rows(module: ir.Module, name: str, layout: _Layout, rows: int) -> ir.Function:
    """What some neighbouring queries of a head get from a panel."""
    function = internal(ir.Function(module, _ROWS, name))
    queries, values, scratch, stats, out, count, sees, window = function.args
    e = Emitter(function, layout.path)
    some = _Rows(
        e=e, layout=layout, rows=rows, queries=queries, values=values, scratch=scratch, stats=stats,
        out=out, count=count, sees=sees, window=window, alphas=e.stack(F32, rows),
    )  # fmt: skip
    low, high = some.seen_by(constant(I64, 0))[0], some.seen_by(constant(I64, rows - 1))[1]
    with e.if_then(e.icmp_signed("<", low, high)):
        some.scale_queries()
        some.score(low, high)
        some.soften(low, high)
        some.attend(low, high)
    e.ret_void()
    return function


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Some queries and a panel."""

    e: Emitter
    layout: _Layout
    rows: int
    queries: Value
    values: Value
    scratch: Value
    stats: Value
    out: Value
    count: Value
    sees: Value
    window: Value
    alphas: Value

    def seen_by(self, row: Value) -> tuple[Value, Value]:
        """The first of the panel's tokens that a row sees, and the one after the last."""
        e = self.e
        sees = e.add(self.sees, row)
        return _at_least_zero(e, e.sub(sees, self.window)), _least(e, sees, self.count)

    def scale_queries(self) -> None:
        """Copied, so that they are multiplied only once."""
        e, layout = self.e, self.layout
        factor = constant(_WIDE, layout.shape.scale)
        for row in range(self.rows):
            source = e.at(self.queries, row * _row_bytes(layout.shape))
            for ((part, mask),) in layout.parts(e, 1):
                numbers = e.fetch_numbers(e.at(source, part, 4 * LANES), KIND_F32, LANES, mask)
                e.put(e.fmul(numbers, factor), e.at(self._query(row), part, 4 * LANES))

    def score(self, low: Value, high: Value) -> None:
        e, layout = self.e, self.layout
        first = e.sub(low, e.srem(low, constant(I64, layout.block)))
        pairs = [(row, part) for row in range(self.rows) for part in range(layout.columns)]
        with e.loop(first, high, layout.block) as token:
            keys = e.at(self.scratch, token, 4 * layout.padded)
            totals = {pair: e.variable(constant(_WIDE, 0.0)) for pair in pairs}
            with e.loop(0, layout.shape.head_dim) as index:
                column = e.at(keys, index, 4 * layout.block)
                parts = [e.fetch(e.at(column, 64 * part), _WIDE) for part in range(layout.columns)]
                for row in range(self.rows):
                    query = e.fetch(e.at(self._query(row), index, 4), F32)
                    wide = e.splat(query, LANES)
                    for part, keys_ in enumerate(parts):
                        total = totals[row, part]
                        total.value = e.multiply_add(wide, keys_, total.value)
            for (row, part), total in totals.items():
                e.put(total.value, e.at(e.at(self._scores(row), 4 * LANES * part), token, 4))

    def soften(self, low: Value, high: Value) -> None:
        """Scores become powers, zero where a row does not see; stats follow."""
        e, layout = self.e, self.layout
        first = e.sub(low, e.srem(low, constant(I64, LANES)))
        with e.loop(0, self.rows) as row:
            scores = e.at(e.at(self.scratch, 4 * layout.scores), row, 4 * PANEL)
            stats = e.at(self.stats, row, 8)
            before, sum_before = e.fetch(stats, F32), e.fetch(e.at(stats, 4), F32)
            most = self._highest(scores, row, (first, high), before)
            sums = e.variable(constant(_WIDE, 0.0))
            with e.loop(first, high, LANES) as token:
                here = e.at(scores, token, 4)
                score = e.fetch(here, _WIDE)
                power = emit_exp(e, e.fsub(score, e.splat(most, LANES)))
                # What is not a number is seen, and shows.
                is_seen = e.fcmp_unordered(">", score, constant(_WIDE, -math.inf))
                power = e.select(is_seen, power, constant(_WIDE, 0.0))
                sums.value = e.fadd(sums.value, power)
                if layout.has_scales:
                    scales = e.at(e.at(self.scratch, 4 * layout.scales), token, 4)
                    power = e.fmul(power, e.fetch(scales, _WIDE))
                e.put(power, here)
            alpha = emit_exp(e, e.splat(e.fsub(before, most), LANES))
            alpha = e.extract_element(alpha, constant(I32, 0))
            total = e.fadd(e.fmul(sum_before, alpha), e.total(sums.value))
            e.put(most, stats)
            e.put(total, e.at(stats, 4))
            e.put(alpha, e.at(self.alphas, row, 4))

    def _highest(
        self, scores: Value, row: Value, bounds: tuple[Value, Value], before: Value
    ) -> Value:
        """The highest score so far; those that are not seen become minus infinity."""
        e = self.e
        low, high = self.seen_by(row)
        lanes = constant(vector(I64, LANES), range(LANES))
        highest = e.variable(e.splat(before, LANES))
        with e.loop(*bounds, LANES) as token:
            here = e.at(scores, token, 4)
            score = self._bend(e.fetch(here, _WIDE))
            index = e.add(lanes, e.splat(token, LANES))
            is_seen = e.and_(
                e.icmp_signed(">=", index, e.splat(low, LANES)),
                e.icmp_signed("<", index, e.splat(high, LANES)),
            )
            score = e.select(is_seen, score, constant(_WIDE, -math.inf))
            e.put(score, here)
            is_higher = e.fcmp_ordered(">", score, highest.value)
            highest.value = e.select(is_higher, score, highest.value)
        return e.highest(highest.value)

    def _bend(self, score: Value) -> Value:
        cap = self.layout.shape.softcap
        if cap is None:
            return score
        bent = emit_tanh(self.e, self.e.fmul(score, constant(_WIDE, 1 / cap)))
        return self.e.fmul(bent, constant(_WIDE, cap))

    def attend(self, low: Value, high: Value) -> None:
        """The output so far, scaled down, and the values weighted."""
        e, layout = self.e, self.layout
        alphas = [e.splat(e.fetch(e.at(self.alphas, 4 * r), F32), LANES) for r in range(self.rows)]
        for parts in layout.parts(e, layout.columns):
            totals = [
                [e.variable(e.fmul(self._out(row, part), alphas[row])) for part in parts]
                for row in range(self.rows)
            ]
            with e.loop(low, high) as token:
                cached = e.at(self.values, token, layout.shape.cached_bytes)
                values = [_fetch_part(e, layout, cached, part) for part in parts]
                for row in range(self.rows):
                    power = e.splat(e.fetch(e.at(self._scores(row), token, 4), F32), LANES)
                    for total, value in zip(totals[row], values, strict=True):
                        total.value = e.multiply_add(power, value, total.value)
            for row in range(self.rows):
                for (part, mask), total in zip(parts, totals[row], strict=True):
                    e.put_numbers(total.value, self._out_at(row, part), KIND_F32, mask)

    def _query(self, row: int) -> Value:
        return self.e.at(self.scratch, 4 * (self.layout.queries + row * self.layout.padded))

    def _scores(self, row: int) -> Value:
        return self.e.at(self.scratch, 4 * (self.layout.scores + row * PANEL))

    def _out_at(self, row: int, part: Value) -> Value:
        out = self.e.at(self.out, row * _out_bytes(self.layout.shape))
        return self.e.at(out, part, 4 * LANES)

    def _out(self, row: int, part: Part) -> Value:
        number, mask = part
        return self.e.fetch_numbers(self._out_at(row, number), KIND_F32, LANES, mask)


def _row_bytes(shape: Heads) -> int:
    """From one token's queries, keys and values to the next's."""
    return 4 * shape.head_dim * (shape.heads + 2 * shape.kv_heads)


def _out_bytes(shape: Heads) -> int:
    return 4 * shape.head_dim * shape.heads


def _fetch_part(e: Emitter, layout: _Layout, cached: Value, part: Part) -> Value:
    """A vector of a key or value; integers where it has a scale."""
    kind, (number, mask) = layout.shape.cache_kind, part
    return e.fetch_numbers(e.at(cached, number, LANES * KIND_BYTES[kind]), kind, LANES, mask)


def _scale_of(e: Emitter, shape: Heads, cached: Value) -> Value:
    return e.fetch(e.at(cached, shape.head_dim), F32)


def _least(e: Emitter, one: Value, other: Value) -> Value:
    return e.select(e.icmp_signed("<", one, other), one, other)


def _at_least_zero(e: Emitter, value: Value) -> Value:
    zero = constant(I64, 0)
    return e.select(e.icmp_signed(">", value, zero), value, zero)
