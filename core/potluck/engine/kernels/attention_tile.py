"""Some rows of queries over a panel of cached tokens, whose scores are known: powers, and the sum of values.

See `attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention import (
    LANES,
    LOWEST,
    PANEL,
    WIDE,
    Ahead,
    Cached,
    Heads,
    blocks_of,
    others_at_once,
    rows_at_once,
)
from potluck.engine.kernels.emit import Emitter, Variable
from potluck.engine.kernels.functions import emit_exp, emit_tanh
from potluck.engine.kernels.ir_types import F32, I32, Operand, constant, vector
from potluck.engine.kernels.memory import Pointer, Span, stack
from potluck.engine.kernels.values import Value

_NEAR_BYTES = 16384  # of values that are read several times: half of the smallest first cache
_UNROLLED = 2  # tokens whose values are added in a loop's body
_LEAST_TOKENS = 16  # that are taken together nevertheless


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Some rows of queries over a panel. Tokens are counted from the first of the panel."""

    shape: Heads
    rows: int
    values: Cached
    scores: Pointer  # (rows, PANEL), f32
    stats: Pointer  # (rows, 2), f32: highest score, sum of powers
    totals: Pointer  # (rows, `value_padded`), f32: the sums of this panel
    # Of a row: the first token that it sees, and the one after the last.
    seen_by: Callable[[Operand], tuple[Value, Value]]
    # Where the sums of the panels before are, to which these are added, and numbers from one row to the
    # next; None: the panel's are what is wanted.
    merged: tuple[Pointer, int] | None = None
    next_keys: Cached | None = None  # those of the next tile, prefetched meanwhile

    def attend(self, low: Value, high: Value) -> None:
        """Compute the panel; the tokens from low to high, which some row sees, have scores."""
        factors = stack(self.values.e, F32, 2 * self.rows)
        self._softmax(low, high, factors)
        self._accumulate(low, high)
        self._merge(factors)

    def _softmax(self, low: Value, high: Value, factors: Pointer) -> None:
        """Turn scores into powers, zero for tokens that a row does not see; write the factors of `merge`."""
        e = self.values.e
        first = low - low % LANES
        with e.loop(0, self.rows) as row:
            scores, stats = self.scores + row * PANEL, self.stats + row * 2
            is_seen = self._sees(row)
            most = self._highest(scores, is_seen, (first, high))
            sums = e.variable(constant(WIDE, 0.0))
            with e.loop(first, high, LANES) as token:
                here = Span(token, LANES)
                # A score that is NaN has a power that is NaN, so that the result is NaN too.
                power = emit_exp(e, scores[here] - most)
                power = e.select(is_seen(token), power, constant(WIDE, 0.0))
                sums.value = sums.value + power
                scores[here] = power
            here = most, sums.value.total()
            if self.merged is not None:
                here, (old, new) = merge(e, (stats[0], stats[1]), here)
                (factors + row * 2)[0], (factors + row * 2)[1] = old, new
            stats[0], stats[1] = here

    def _sees(self, row: Value) -> Callable[[Value], Value]:
        """Return what says which of the `LANES` tokens from some token on the row sees."""
        e = self.values.e
        low, high = (e.trunc(bound, I32) for bound in self.seen_by(row))
        lanes = constant(vector(I32, LANES), range(LANES))

        def is_seen(token: Value) -> Value:
            index = e.trunc(token, I32) + lanes
            return (index >= low) & (index < high)

        return is_seen

    def _highest(
        self, scores: Pointer, is_seen: Callable[[Value], Value], bounds: tuple[Value, Value]
    ) -> Value:
        """Return the highest score that is seen; all are capped, if the shape says so."""
        e = self.values.e
        highest = e.variable(constant(WIDE, LOWEST))
        with e.loop(*bounds, LANES) as token:
            here = Span(token, LANES)
            score = scores[here]
            if (cap := self.shape.softcap) is not None:
                score = scores[here] = emit_tanh(e, score * (1 / cap)) * cap
            score = e.select(is_seen(token), score, constant(WIDE, LOWEST))
            highest.value = score.at_least(highest.value)
        return highest.value.highest()

    def _accumulate(self, low: Value, high: Value) -> None:
        """Sum values times powers, for as many rows and vectors at a time as registers hold.

        All rows and vectors take some tokens whose values fit the first cache, then the next ones.
        """
        e, vectors = self.values.e, self.shape.value_padded // LANES
        with e.loop(0, self.rows * vectors) as number:
            self.totals.of(WIDE)[number] = constant(WIDE, 0.0)
        tiles = [
            (some, blocks_of(vectors, others_at_once(e.path, some[2]))[0][2])
            for some in blocks_of(self.rows, rows_at_once(e.path))
        ]
        ahead = None
        if self.next_keys is not None:
            steps = sum(
                (stop - start) // count * -(-vectors // wide)
                for (start, stop, count), wide in tiles
            )
            ahead = Ahead(self.next_keys, low, _UNROLLED, steps)
        tokens = _tokens_at_once(self.shape)
        with e.loop(low, high, tokens) as begin:
            end = (begin + tokens).at_most(high)
            for (start, stop, count), wide in tiles:
                with e.loop(start, stop, count) as row:
                    self._accumulate_rows((row, count), wide, (begin, end), ahead)

    def _accumulate_rows(
        self,
        rows: tuple[Value, int],
        vectors: int,
        bounds: tuple[Value, Value],
        ahead: Ahead | None,
    ) -> None:
        e, (row, count), padded = self.values.e, rows, self.shape.value_padded
        scores, totals = self.scores + row * PANEL, self.totals + row * padded
        for spans in self.shape.each_span(e, vectors):
            places = [
                (member, (totals + member * padded), Span(span.first, LANES))
                for member in range(count)
                for span in spans
            ]
            sums = [e.variable(memory[span]) for _, memory, span in places]
            begin, end = bounds
            whole = end - (end - begin) % _UNROLLED
            for start, stop, step in ((begin, whole, _UNROLLED), (whole, end, 1)):
                with e.loop(start, stop, step) as token:
                    if ahead is not None and step == _UNROLLED:
                        ahead.step()
                    for index in range(step):
                        self._add(token + index, spans, scores, sums)
            for total, (_, memory, span) in zip(sums, places, strict=True):
                memory[span] = total.value

    def _add(self, token: Value, spans: list[Span], scores: Pointer, sums: list[Variable]) -> None:
        """Add a token's value, times the power of each row."""
        e, here = self.values.e, self.values.at(token)
        values = [here[span] for span in spans]
        if self.shape.has_scales:
            scale = e.splat(self.values.scale(token), LANES)
            values = [value * scale for value in values]
        for member in range(len(sums) // len(spans)):
            power = e.splat(scores[token + member * PANEL], LANES)
            for number, value in enumerate(values):
                total = sums[member * len(spans) + number]
                total.value = e.multiply_add(power, value, total.value)

    def _merge(self, factors: Pointer) -> None:
        """Add the sums of this panel to those of the panels before."""
        if self.merged is None:
            return
        e, (out, stride) = self.values.e, self.merged
        with e.loop(0, self.rows) as row:
            before, panel = out + row * stride, self.totals + row * self.shape.value_padded
            both = factors[2 * row], factors[2 * row + 1]
            for (span,) in self.shape.each_span(e, 1):
                here = panel[Span(span.first, LANES)]
                before[span] = add_scaled(e, (before[span], here), both)


def _tokens_at_once(shape: Heads) -> int:
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
