"""Some rows of queries over a panel of cached tokens, whose scores are known: powers, and the sum of values.

See `attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from potluck.engine.kernels.attending.attention import (
    LANES,
    LOWEST,
    PANEL,
    WIDE,
    Ahead,
    Attended,
    Cached,
    blocks_of,
    others_at_once,
    rows_at_once,
)
from potluck.engine.kernels.attending.attention_integers import (
    LARGEST_POWER,
    TOTALS,
    IntegerPairs,
)
from potluck.engine.kernels.attending.attention_pairs import Pairs
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.functions import emit_exp, emit_integers, emit_scale, emit_tanh
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I16,
    I32,
    I64,
    KIND_F32,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span, stack
from potluck.engine.kernels.writing.values import Value

_NEAR_BYTES = 16384  # of values that are read several times: half of the smallest first cache
_TOGETHER = 2  # tokens whose values are added in a loop's body
_IN_SOFTMAX = 0.25  # of the next keys, which share of is prefetched while powers are computed
_FACTORS = 3  # of a row: of the panels before and of this one, and of the integers of this one
_LEAST_SEEN = LOWEST / 2  # no score that is seen is below
_LEAST_TOKENS = 16  # that are taken together nevertheless


@dataclass(frozen=True)
class _Sums:
    """The sums of some vectors of values, for some rows."""

    spans: list[Span]
    powers: Pointer  # of the first of these rows
    totals: list[Variable]  # row by row
    ahead: tuple[Ahead, float] | None  # and the size of a piece

    @property
    def rows(self) -> int:
        return len(self.totals) // len(self.spans)

    def of(self, row: int) -> list[Variable]:
        """The sums of a row."""
        return self.totals[row * len(self.spans) : (row + 1) * len(self.spans)]

    def prefetch(self) -> None:
        """Prefetch a piece of what is read later."""
        if self.ahead is not None:
            ahead, piece = self.ahead
            ahead.step(piece)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Some rows of queries over a panel. Tokens are counted from the first of the panel."""

    shape: Attended
    rows: int
    values: Cached
    scores: Pointer  # (rows, PANEL), f32
    value_scales: Pointer  # (PANEL,), f32; read where the cache has scales
    stats: Pointer  # (rows, 2), f32: highest score, sum of powers
    totals: (
        Pointer  # (rows, `value_padded`), f32: the sums of this panel; they are integers meanwhile
    )
    # Of a row: the first token that it sees, and the one after the last.
    seen_by: Callable[[Operand], tuple[Value, Value]]
    # Where the sums of the panels before are, to which these are added, and numbers from one row to the
    # next; None: the panel's are what is wanted.
    merged: tuple[Pointer, int] | None = None
    next_keys: Cached | None = None  # those of the next tile, prefetched meanwhile

    def attend(self, low: Value, high: Value) -> None:
        """Compute the panel; the tokens from low to high, which some row sees, have scores."""
        factors = stack(self.values.e, F32, _FACTORS * self.rows).of(KIND_F32)
        ahead = None if self.next_keys is None else Ahead(self.next_keys, low)
        self._softmax(low, high, factors, ahead)
        self._accumulate(low, high, ahead)
        self._finish(factors)

    def _softmax(self, low: Value, high: Value, factors: Pointer, ahead: Ahead | None) -> None:
        """Turn scores into powers, zero for tokens that a row does not see; write the factors of `_finish`."""
        e, has_scales = self.values.e, self.shape.has_scales
        first, zeros = low - low % LANES, constant(WIDE, 0.0)
        with e.loop(0, self.rows) as row:
            scores, stats = self.scores + row * PANEL, self.stats + row * 2
            here_factors = factors + row * _FACTORS
            self._cap(scores, (first, high))
            self._hide(scores, row, (first, high))
            most = self._highest(scores, (first, high))
            # Far above a score that is not seen, so that the power is zero also where a row sees none.
            above = e.splat(most.at_least(_LEAST_SEEN), LANES)
            sums = e.variable(zeros)
            largest = e.variable(constant(TOTALS, 0))
            with e.loop(first, high, LANES) as token:
                if ahead is not None:
                    ahead.step(LANES * _IN_SOFTMAX / self.rows)
                here = Span(token, LANES)
                # A score that is NaN has a power that is NaN, so that the result is NaN too.
                power = emit_exp(e, scores[here] - above, is_positive=False)
                if self.shape.has_pairs:
                    power = Pairs(e).write_powers(scores, here, power)
                sums.value = sums.value + power
                if has_scales:
                    # Tokens that are not seen have whatever scale.
                    power = e.select(power.equals(0.0), zeros, power * self.value_scales[here])
                    largest.value = power.magnitude_bits().at_least(largest.value)
                if not self.shape.has_pairs:
                    scores[here] = power
            if has_scales:
                here_factors[2] = self._round(scores, (first, high), largest.value)
            here = most, sums.value.total()
            if self.merged is not None:
                here, (old, new) = merge(e, (stats[0], stats[1]), here)
                here_factors[0], here_factors[1] = old, new
            stats[0], stats[1] = here

    def _round(self, powers: Pointer, bounds: tuple[Value, Value], largest: Value) -> Value:
        """Write powers in their place as integers of 16 bits; return what these are multiplied with."""
        e = self.values.e
        most = e.bitcast(largest.reduce("umax"), F32)
        scale, inverse = emit_scale(e, most, LARGEST_POWER)
        with e.loop(*bounds, LANES) as token:
            integers = emit_integers(e, powers[Span(token, LANES)], inverse, LARGEST_POWER)
            powers.of(I16)[Span(token, LANES)] = e.trunc(integers, vector(I16, LANES))
        return scale

    def _cap(self, scores: Pointer, bounds: tuple[Value, Value]) -> None:
        """Cap scores, if the shape says so."""
        if (cap := self.shape.softcap) is not None:
            e = self.values.e
            with e.loop(*bounds, LANES) as token:
                here = Span(token, LANES)
                scores[here] = emit_tanh(e, scores[here] * (1 / cap)) * cap

    def _hide(self, scores: Pointer, row: Value, bounds: tuple[Value, Value]) -> None:
        """Write `LOWEST` as the scores of tokens that the row does not see: at either end, and few, if any."""
        e, (first, last) = self.values.e, bounds
        low, high = self.seen_by(row)
        lanes = constant(vector(I32, LANES), range(LANES))
        not_yet = first, low.at_most(last)
        no_longer = (high - high % LANES).at_least(first), last
        for start, stop in (not_yet, no_longer):
            with e.loop(start, stop, LANES) as token:
                index = e.trunc(token, I32) + lanes
                is_seen = (index >= e.trunc(low, I32)) & (index < e.trunc(high, I32))
                here = Span(token, LANES)
                scores[here] = e.select(is_seen, scores[here], constant(WIDE, LOWEST))

    def _highest(self, scores: Pointer, bounds: tuple[Value, Value]) -> Value:
        """Return the highest score."""
        e = self.values.e
        highest = e.variable(constant(WIDE, LOWEST))
        with e.loop(*bounds, LANES) as token:
            highest.value = scores[Span(token, LANES)].at_least(highest.value)
        return highest.value.highest()

    @property
    def _sum(self) -> ir.VectorType:
        """What values are added up in."""
        return TOTALS if self.shape.has_scales else WIDE

    def _accumulate(self, low: Value, high: Value, ahead: Ahead | None) -> None:
        """Sum values times powers, for as many rows and vectors at a time as registers hold.

        All rows and vectors take some tokens whose values fit the first cache, then the next ones.
        """
        e, vectors = self.values.e, self.shape.value_padded // LANES
        # Zero, as floats and as integers: the sign of an address. Of a constant LLVM makes a call of memset,
        # which no kernel may need.
        sign = e.ptrtoint(self.totals, I64) >> 63
        zero = e.bitcast(e.splat(e.trunc(sign, I32), LANES), WIDE)
        with e.loop(0, self.rows * vectors) as number:
            self.totals.of(WIDE)[number] = zero
        tiles = [
            (some, blocks_of(vectors, others_at_once(e.path, some[2]))[0][2])
            for some in blocks_of(self.rows, rows_at_once(e.path))
        ]
        steps = sum(
            (stop - start) // count * -(-vectors // wide) for (start, stop, count), wide in tiles
        )
        pieces = None if ahead is None else (ahead, _TOGETHER * (1 - _IN_SOFTMAX) / steps)
        tokens = _tokens_at_once(self.shape)
        with e.loop(low - low % _TOGETHER, high, tokens) as begin:
            bounds = begin.at_least(low), (begin + tokens).at_most(high)
            for (start, stop, count), wide in tiles:
                with e.loop(start, stop, count) as row:
                    self._accumulate_rows((row, count), wide, bounds, pieces)

    def _accumulate_rows(
        self,
        rows: tuple[Value, int],
        vectors: int,
        bounds: tuple[Value, Value],
        ahead: tuple[Ahead, float] | None,
    ) -> None:
        e, (row, count), padded = self.values.e, rows, self.shape.value_padded
        scores = self.scores + row * PANEL
        for spans in self.shape.each_span(e, vectors):
            places = [
                (self.totals + (row + member) * padded + span.first).of(self._sum)
                for member in range(count)
                for span in spans
            ]
            totals = [e.variable(place[0]) for place in places]
            sums = _Sums(spans, scores, totals, ahead)
            by_pairs = self.shape.has_scales or self.shape.has_pairs
            (self._add_pairs if by_pairs else self._add_tokens)(bounds, sums)
            for total, place in zip(totals, places, strict=True):
                place[0] = total.value

    def _add_tokens(self, bounds: tuple[Value, Value], sums: _Sums) -> None:
        """Add the values of tokens, times the power of each row."""
        e, (begin, end) = self.values.e, bounds
        whole = end - (end - begin) % _TOGETHER
        for start, stop, step in ((begin, whole, _TOGETHER), (whole, end, 1)):
            with e.loop(start, stop, step) as first:
                if step > 1:
                    sums.prefetch()
                for token in (first + index for index in range(step)):
                    here = self.values.at(token)
                    values = [here[span] for span in sums.spans]
                    for row in range(sums.rows):
                        power = e.splat(sums.powers[token + row * PANEL], LANES)
                        for value, total in zip(values, sums.of(row), strict=True):
                            total.value = e.multiply_add(power, value, total.value)

    def _add_pairs(self, bounds: tuple[Value, Value], sums: _Sums) -> None:
        """Add two tokens' values at a time, times the powers of each row.

        The first or the last token may be alone in its pair: the other power is zero.
        """
        e, (begin, end) = self.values.e, bounds
        pairs: Any = IntegerPairs(e) if self.shape.has_scales else Pairs(e)
        first, inner = begin - begin % _TOGETHER, begin + begin % _TOGETHER
        last = inner.at_least(end - end % _TOGETHER)
        loops = ((first, inner, begin), (inner, last, None), (last, end, end - 1))
        for start, stop, alone in loops:
            with e.loop(start, stop, _TOGETHER) as token:
                if alone is None:
                    sums.prefetch()
                both = (token, token + 1) if alone is None else (alone, alone)
                places = [self.values.at(one) for one in both]
                values = [pairs.values(*places, span) for span in sums.spans]
                for row in range(sums.rows):
                    powers = pairs.powers(sums.powers + row * PANEL, token)
                    for value, total in zip(values, sums.of(row), strict=True):
                        total.value = pairs.add(total.value, value, powers)

    def _finish(self, factors: Pointer) -> None:
        """Make floats of the sums, and add them to those of the panels before."""
        if self.merged is None and not self.shape.has_scales:
            return
        e = self.values.e
        with e.loop(0, self.rows) as row:
            old, new, scale = (factors[row * _FACTORS + index] for index in range(_FACTORS))
            panel = self.totals + row * self.shape.value_padded
            for (span,) in self.shape.each_span(e, 1):
                here = panel[Span(span.first, LANES)]
                if self.shape.has_scales:
                    here = e.sitofp((panel + span.first).of(TOTALS)[0], WIDE) * scale
                if self.merged is None:
                    panel[Span(span.first, LANES)] = here
                else:
                    out, stride = self.merged
                    before = out + row * stride
                    before[span] = add_scaled(e, (before[span], here), (old, new))


def _tokens_at_once(shape: Attended) -> int:
    """Return how many tokens' values fit the first cache beside all else."""
    tokens = PANEL
    while tokens > _LEAST_TOKENS and tokens * shape.cached_bytes > _NEAR_BYTES:
        tokens //= 2
    return tokens


def merge(
    e: Emitter, before: tuple[Value, Value], panel: tuple[Value, Value]
) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """Merge the stats (highest score, sum of powers) of the panels before and of the next panel.

    Returns:
        The stats of all of them, and the factors of both outputs for `add_scaled`. A panel without a token
        that is seen, whose highest score is `LOWEST` and whose sum is zero, changes nothing.
    """
    most = panel[0].at_least(before[0])
    differences = e.splat(before[0] - most, LANES)
    powers = emit_exp(e, e.insert_element(differences, panel[0] - most, constant(I32, 1)))
    factors = powers.lane(0), powers.lane(1)
    return (most, add_scaled(e, (before[1], panel[1]), factors)), factors


def add_scaled(e: Emitter, parts: tuple[Value, Value], factors: tuple[Operand, Operand]) -> Value:
    """Add what the panels before have and what the next one has, numbers or vectors, times their factors."""
    (before, panel), (old, new) = parts, (e.value(factor) for factor in factors)
    if isinstance(panel.type, ir.VectorType):
        new = e.splat(new, panel.type.count)
    return e.multiply_add(panel, new, before * old)
