"""Attention of a tile: some rows of queries over a panel of cached tokens, by an online softmax.

    score         scores = scale q Kᵀ, which `attention_kernel` and `prefill_kernel` compute
    softmax       scores are capped and become powers, relative to the highest score of the panel
    accumulate    the output of the panel is the sum of values times their powers
    merge         what the panels before have, and this one, are scaled to the same highest score, and added

The output is divided by the sum of the powers at the end (https://arxiv.org/abs/2205.14135). A row has the
same bits whoever computes it, one token or many, alone or among threads: panels begin at positions that are
multiples of `PANEL`, each is computed by itself, and they are merged in their order. A score is the sum of
`LANES` sums, which are added as `Emitter.total_of_each` does.

A layer's cache is (2, Hkv, capacity, K): keys, then values, of f32, bf16 or f16, or of int8 with a
scale after each (see `layout`). Whole panels at its beginning may lie elsewhere, in rows that sessions share. The heads of a group share a key head, whose keys and values are read
once for all of them and never expanded.

In latent attention, the cache is (1, 1, capacity, row): all heads have the row as their key, and its first numbers
as their value. As int8 both parts of a row have a scale, and keys are multiplied with theirs when they are loaded.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_exp, emit_tanh
from potluck.engine.kernels.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    KIND_INT8,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.layout import CACHE_LINE, CACHE_SCALE_BYTES
from potluck.engine.kernels.memory import Pointer, Record, Span, stack
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.values import Value
from potluck.model.families.facts import QkNormKind

LANES = 16  # numbers of a vector; also how many cached tokens are scored together
WIDE = vector(F32, LANES)
# Cached tokens of a panel. Keys of 64 numbers then take 64 kB as columns, which stay in the second cache.
PANEL = 256
KeyPart = Literal["whole", "latent", "turned"]
LOWEST = -1e30  # below any score, but finite, so that differences are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What the kernels of attention are written for."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # how many of the head_dim numbers rope turns, where a layer has rope
    qk_norm: QkNormKind | None
    epsilon: float  # of the norms of queries and keys
    scale: float  # of queries times keys
    softcap: float | None  # scores become cap tanh(score / cap)
    cache_kind: int
    has_sinks: bool = False  # each head has a score beside those of the tokens, with no value
    rank: int | None = None  # of latent attention: how many of a key's numbers are the value
    index_dim: int = 0  # numbers of an indexer's key behind a latent row, which attention passes by
    has_gates: bool = False  # behind each head's query lie as many numbers, which are passed by
    qk_norm_after_rope: bool = False
    value_norm: bool = False  # each head's values are normed too
    keys_are_values: bool = False  # before their norm and rope: a token has queries and keys alone

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0
        if self.rank is not None:
            assert self.kv_heads == 1
            assert self.rank % LANES == 0
            assert self.rank + self.rotary_dim == self.head_dim
        assert self.rotary_dim % 2 == 0
        assert 0 <= self.rotary_dim <= self.head_dim

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.head_dim if self.rank is None else self.rank

    @property
    def query_step(self) -> int:
        """Numbers from one head's query to the next."""
        return 2 * self.head_dim if self.has_gates else self.head_dim

    @property
    def queries_size(self) -> int:
        """Numbers of a token before its keys."""
        return self.heads * self.query_step

    @property
    def row_numbers(self) -> int:
        """Numbers of a token's queries, and of the keys and values that follow them."""
        cached = (1 if self.keys_are_values else 2) * self.kv_heads
        return self.queries_size + (cached * self.head_dim if self.rank is None else 0)

    @property
    def vectors(self) -> int:
        """Vectors of a key; the last one may not be full."""
        return -(-self.head_dim // LANES)

    @property
    def padded(self) -> int:
        """Numbers in these vectors."""
        return self.vectors * LANES

    @property
    def value_padded(self) -> int:
        """Numbers in the vectors of a value."""
        return -(-self.value_dim // LANES) * LANES

    @property
    def has_scales(self) -> bool:
        return self.cache_kind == KIND_INT8

    @property
    def scales_scores(self) -> bool:
        """Whether scores are multiplied with the scales of the keys."""
        return self.has_scales and self.rank is None

    @property
    def cached_bytes(self) -> int:
        """Bytes from one key, or from one value, in the cache to the next."""
        scale_bytes = CACHE_SCALE_BYTES if self.has_scales and self.index_dim else 0
        return self.row_bytes + self.index_dim * KIND_BYTES[self.cache_kind] + scale_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a key, or of a value, in the cache; of a latent row, which is both."""
        parts = 1 if self.rank is None else 2
        scale_bytes = parts * CACHE_SCALE_BYTES if self.has_scales else 0
        return self.head_dim * KIND_BYTES[self.cache_kind] + scale_bytes

    @property
    def key_parts(self) -> tuple[tuple[int, int, KeyPart], ...]:
        """The parts of a key that `Cached.key` loads: where each begins, and how many numbers it has."""
        if self.rank is None:
            return ((0, self.head_dim, "whole"),)
        return (0, self.rank, "latent"), (self.rank, self.rotary_dim, "turned")

    def spans(self, e: Emitter, parts: range) -> list[Span]:
        """Return these vectors of a key, as indices."""
        return [_span(e, self.head_dim, part) for part in parts]

    def each_span(self, e: Emitter, count: int, size: int | None = None) -> Iterator[list[Span]]:
        """Write the body for `count` vectors at a time: in a loop for whole vectors, then for the rest.

        `size`: of how many numbers; None: those of a value.
        """
        size = self.value_dim if size is None else size
        vectors, whole = -(-size // LANES), size // (LANES * count) * count
        with e.loop(0, whole, count) as first:
            yield [Span((first + index) * LANES, LANES) for index in range(count)]
        for start in range(whole, vectors, count):
            yield [_span(e, size, part) for part in range(start, min(start + count, vectors))]


def _span(e: Emitter, size: int, part: int) -> Span:
    left = size - part * LANES
    mask = None if left >= LANES else e.first_lanes(e.index(left), LANES)
    return Span(e.index(part * LANES), LANES, mask)


def rows_at_once(path: Path) -> int:
    """Return how many queries are scored together; times `columns_at_once`, half of the registers."""
    return {32: 8, 8: 6}.get(path.registers, 2)


def columns_at_once(path: Path) -> int:
    """Return how many vectors each row is multiplied with at a time."""
    return 2 if path.registers >= 32 else 1


@dataclass(frozen=True)
class Cached:
    """Keys or values of a head, from some token on."""

    e: Emitter
    shape: Heads
    base: Pointer

    def at(self, token: Operand) -> Pointer:
        """Where the numbers of a token are; they are integers where there is a scale."""
        return self.base.skip(token, self.shape.cached_bytes).of(self.shape.cache_kind)

    def past(self, token: Operand) -> "Cached":
        """The same from a later token on."""
        return Cached(self.e, self.shape, self.at(token))

    def scale(self, token: Operand) -> Value:
        """What the integers of a token are multiplied with; of a latent row, those of the value."""
        return self.at(token).skip(self.shape.value_dim).of(KIND_F32)[0]

    def key(self, token: Operand, span: Span, part: KeyPart) -> Value:
        """A vector of a token's key: as it lies there, or of a part of a latent row, multiplied with its scale."""
        shape, start = self.shape, self.at(token)
        if part == "whole" or not shape.has_scales:
            return start[span]
        if part == "turned":
            start = start.skip(CACHE_SCALE_BYTES)
        place = shape.value_dim if part == "latent" else shape.head_dim
        scale = start.skip(place).of(KIND_F32)[0]
        return start[span] * self.e.splat(scale, LANES)

    def key_vectors(self, token: Operand) -> list[Value]:
        """All vectors of a token's key, as `key` returns them."""
        return [
            self.key(
                token, Span(begin + LANES * index, LANES, _span(self.e, size, index).mask), part
            )
            for begin, size, part in self.shape.key_parts
            for index in range(-(-size // LANES))
        ]

    def prefetch(self, token: Operand) -> None:
        """Prefetch a token, because the processor does not foresee the first tokens of a head."""
        for offset in range(0, self.shape.cached_bytes, CACHE_LINE):
            self.at(token).skip(offset).prefetch()


def rows_of(e: Emitter, shape: Heads, given: Record, head: Value) -> Callable[[str, Value], Cached]:
    """Return what finds the `keys` or `values` of a key head, from the first token of a panel on.

    Args:
        e: the function that is written.
        shape: of the heads.
        given: a record with the fields of a cache: see `Attend`.
        head: which key head.
    """

    def at(name: str, start: Value) -> Cached:
        is_shared = start < given["own_from"]
        memory = e.select(is_shared, given[f"shared_{name}"], given[name])
        stride = e.select(is_shared, given["shared_stride"], given["head_stride"])
        return Cached(e, shape, Pointer(e, memory, I8).skip(head, stride)).past(start)

    return at


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Some rows of queries over a panel. Tokens are counted from the first of the panel."""

    shape: Heads
    rows: int
    values: Cached
    scores: Pointer  # (rows, PANEL), f32
    stats: Pointer  # (rows, 2), f32: highest score, sum of powers
    out: Pointer  # (rows, …), f32
    out_stride: int  # numbers from one row to the next
    # Of a row: the first token that it sees, and the one after the last.
    seen_by: Callable[[Operand], tuple[Value, Value]]
    is_merged: (
        bool  # whether the panel is merged into stats and output; otherwise it is written there
    )
    next_keys: Cached | None = None  # those of the next tile, prefetched meanwhile

    def attend(self, low: Value, high: Value) -> None:
        """Compute the panel; the tokens from low to high, which some row sees, have scores."""
        factors = stack(self.values.e, F32, 2 * self.rows)
        self._softmax(low, high, factors)
        self._accumulate(low, high, factors)

    def _softmax(self, low: Value, high: Value, factors: Pointer) -> None:
        """Turn scores into powers, zero for tokens that a row does not see; write the factors of `merge`."""
        e = self.values.e
        first = low - low % LANES
        with e.loop(0, self.rows) as row:
            scores, stats = self.scores + row * PANEL, self.stats + row * 2
            most = self._highest(scores, row, (first, high))
            sums = e.variable(constant(WIDE, 0.0))
            with e.loop(first, high, LANES) as token:
                here = Span(token, LANES)
                score = scores[here]
                power = emit_exp(e, score - most)
                # A score that is NaN counts as seen, so that the result is NaN too.
                is_seen = e.fcmp_unordered(">", score, constant(WIDE, -math.inf))
                power = e.select(is_seen, power, constant(WIDE, 0.0))
                sums.value = sums.value + power
                scores[here] = power
            here = most, sums.value.total()
            if self.is_merged:
                here, (old, new) = merge(e, (stats[0], stats[1]), here)
                (factors + row * 2)[0], (factors + row * 2)[1] = old, new
            stats[0], stats[1] = here

    def _highest(self, scores: Pointer, row: Value, bounds: tuple[Value, Value]) -> Value:
        """Return the highest score; scores of tokens that are not seen become minus infinity."""
        e, (low, high) = self.values.e, self.seen_by(row)
        highest = e.variable(constant(WIDE, LOWEST))
        with e.loop(*bounds, LANES) as token:
            here = Span(token, LANES)
            index = token + constant(vector(I64, LANES), range(LANES))
            is_seen = (index >= low) & (index < high)
            score = e.select(is_seen, self._softcap(scores[here]), constant(WIDE, -math.inf))
            scores[here] = score
            highest.value = score.at_least(highest.value)
        return highest.value.highest()

    def _softcap(self, score: Value) -> Value:
        cap = self.shape.softcap
        return score if cap is None else emit_tanh(self.values.e, score * (1 / cap)) * cap

    def _accumulate(self, low: Value, high: Value, factors: Pointer) -> None:
        """Sum values times powers, for as many rows and vectors at a time as registers hold."""
        path = self.values.e.path
        room = rows_at_once(path) * columns_at_once(path)
        count = min(self.rows, room)
        for first in range(0, self.rows, count):
            rows = range(first, min(first + count, self.rows))
            prefetched = self.next_keys if first == 0 else None
            self._accumulate_rows(rows, max(1, room // count), (low, high), factors, prefetched)

    def _accumulate_rows(
        self,
        rows: range,
        vectors: int,
        bounds: tuple[Value, Value],
        factors: Pointer,
        prefetched: Cached | None,
    ) -> None:
        e = self.values.e
        most = self.shape.value_padded // LANES
        for spans in self.shape.each_span(e, min(vectors, most)):
            pairs = [(row, number) for row in rows for number in range(len(spans))]
            totals = {pair: e.variable(constant(WIDE, 0.0)) for pair in pairs}
            with e.loop(*bounds) as token:
                here = self.values.at(token)
                values = [here[span] for span in spans]
                if self.shape.has_scales:
                    scale = e.splat(self.values.scale(token), LANES)
                    values = [value * scale for value in values]
                if prefetched is not None:
                    prefetched.prefetch(token)
                for row in rows:
                    power = e.splat(self.scores[token + row * PANEL], LANES)
                    for number, value in enumerate(values):
                        total = totals[row, number]
                        total.value = e.multiply_add(power, value, total.value)
            for (row, number), total in totals.items():
                out, span = self.out + row * self.out_stride, spans[number]
                merged = total.value
                if self.is_merged:
                    old, new = factors[2 * row], factors[2 * row + 1]
                    merged = add_scaled(e, (out[span], total.value), (old, new))
                out[span] = merged
            prefetched = None


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
