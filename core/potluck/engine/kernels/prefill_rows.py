"""What some queries of a head get from a panel of cached tokens: the inner part of `prefill_kernel`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import LANES, Heads
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_exp, emit_tanh
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    KIND_INT8,
    POINTER,
    VOID,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.paths import Path

# Cached tokens: keys of 64 numbers take 64 kB as columns, which stay in the second cache.
PANEL = 256
_WIDE = vector(F32, LANES)

# queries, values, scratch, stats, out, cached tokens in the panel, how many of them the first row sees
# if no window ends before, window
ROWS = ir.FunctionType(VOID, [POINTER] * 5 + [I64] * 3)

Part = tuple[Value, Value | None]
"""The number of a vector of a head, and the mask of what is there of it; None: it is whole."""


@dataclass(frozen=True)
class Layout:
    """How much is done at a time, and where things stand in the scratch of a key head, in f32.

    First the keys of a panel as columns, then scores, the scales of values, and queries.
    """

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


def emit_rows(module: ir.Module, name: str, layout: Layout, rows: int) -> ir.Function:
    """What some neighbouring queries of a head get from a panel."""
    function = internal(ir.Function(module, ROWS, name))
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
    layout: Layout
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
        return at_least_zero(e, e.sub(sees, self.window)), least(e, sees, self.count)

    def scale_queries(self) -> None:
        """Copied, so that they are multiplied only once."""
        e, layout = self.e, self.layout
        factor = constant(_WIDE, layout.shape.scale)
        for row in range(self.rows):
            source = e.at(self.queries, row * row_bytes(layout.shape))
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
                values = [fetch_part(e, layout, cached, part) for part in parts]
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
        out = self.e.at(self.out, row * out_bytes(self.layout.shape))
        return self.e.at(out, part, 4 * LANES)

    def _out(self, row: int, part: Part) -> Value:
        number, mask = part
        return self.e.fetch_numbers(self._out_at(row, number), KIND_F32, LANES, mask)


def row_bytes(shape: Heads) -> int:
    """From one token's queries, keys and values to the next's."""
    return 4 * shape.head_dim * (shape.heads + 2 * shape.kv_heads)


def out_bytes(shape: Heads) -> int:
    """From one token's output to the next's."""
    return 4 * shape.head_dim * shape.heads


def fetch_part(e: Emitter, layout: Layout, cached: Value, part: Part) -> Value:
    """A vector of a key or value; integers where it has a scale."""
    kind, (number, mask) = layout.shape.cache_kind, part
    return e.fetch_numbers(e.at(cached, number, LANES * KIND_BYTES[kind]), kind, LANES, mask)


def scale_of(e: Emitter, shape: Heads, cached: Value) -> Value:
    """What the integers of a key or value are multiplied with."""
    return e.fetch(e.at(cached, shape.head_dim), F32)


def least(e: Emitter, one: Value, other: Value) -> Value:
    """The smaller of two signed integers."""
    return e.select(e.icmp_signed("<", one, other), one, other)


def at_least_zero(e: Emitter, value: Value) -> Value:
    """The signed integer, or zero if it is negative."""
    zero = constant(I64, 0)
    return e.select(e.icmp_signed(">", value, zero), value, zero)
