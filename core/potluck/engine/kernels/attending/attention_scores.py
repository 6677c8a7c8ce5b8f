"""The scores of one token: the queries of all heads of a group over the keys of a panel.

Some heads at a time are multiplied with some keys, each of which is read once for them. A vector has the sums of
two tokens, `SUMS` of each, so that the totals of `SUMS` vectors are the scores of 16 tokens in their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from llvmlite import ir

from potluck.engine.kernels.attending.attention import (
    LANES,
    PANEL,
    SUMS,
    WIDE,
    Ahead,
    Attended,
    Cached,
    blocks_of,
    each_some,
    others_at_once,
    rows_at_once,
)
from potluck.engine.kernels.attending.attention_integers import (
    TOTALS,
    Part,
    add_products,
    parts_of,
    round_query,
    rounded_size,
    score,
    widened,
)
from potluck.engine.kernels.attending.attention_pairs import BLOCK, Pair, Pairs
from potluck.engine.kernels.layout import CACHE_LINE
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.ir_types import I16, Operand, constant
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value

_MOST_HEADS = 8  # that are multiplied with a key at a time
_Tokens = tuple[Value, Value]  # `SUMS` apart
Numbers = TypeVar("Numbers")  # of keys or queries, as they are multiplied


class Products(Protocol[Numbers]):
    """How queries are multiplied with keys, of which each part has a sum of its own."""

    parts: int
    lanes: int  # numbers of a key that are multiplied at a time
    zero: ir.Constant

    def begin(self, low: Value, high: Value) -> None: ...
    def spans(self, part: int) -> Iterator[Span]: ...
    def key(self, part: int, tokens: _Tokens, span: Span) -> Numbers: ...
    def query(self, part: int, head: Value, span: Span) -> Numbers: ...
    def add(self, total: Value, key: Numbers, query: Numbers) -> Value: ...
    def scores(self, totals: list[Value], head: Value, first: Value) -> Value: ...


def scratch_floats(shape: Attended) -> int:
    """Return how many f32 of memory `write_scores` uses, beside the scales of a panel."""
    return _rounded_floats(shape) + len(parts_of(shape)) * _MOST_HEADS * SUMS * LANES


def scales_floats(shape: Attended) -> int:
    """Return how many f32 the scales of a panel's keys and values are."""
    return (len(parts_of(shape)) + 1) * PANEL if shape.has_scales else 0


def value_scales(shape: Attended, scales: Pointer) -> Pointer:
    """Return where the scales of values are, among those of a panel."""
    return scales if shape.rank is not None else scales + PANEL


def _rounded_floats(shape: Attended) -> int:
    """Return how many f32 the rounded queries take, and what they are multiplied with."""
    if shape.has_pairs:
        return shape.group * shape.padded
    if not shape.has_scales:
        return 0
    numbers = shape.group * (rounded_size(shape) // 2 + len(parts_of(shape)))
    return -(-numbers // LANES) * LANES


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Writes the scores of a panel."""

    shape: Attended
    keys: Cached
    values: Cached  # prefetched meanwhile
    queries: Pointer  # (group, …), f32, as far apart as the shape says
    out: Pointer  # (group, PANEL), f32
    scales: Pointer  # `scales_floats`
    memory: Pointer  # `scratch_floats`

    def write(self, low: Value, high: Value) -> None:
        """Write the scores of the tokens from low to high, for 16 tokens at a time."""
        shape, e = self.shape, self.keys.e
        products = _products(self)
        products.begin(low, high)
        blocks = [
            (*block, _pairs_at_once(e.path, block[2]))
            for block in blocks_of(shape.group, min(_MOST_HEADS, rows_at_once(e.path)))
        ]
        steps = sum((stop - start) // heads * SUMS // pairs for start, stop, heads, pairs in blocks)
        # The values of 16 tokens are prefetched a line or two at a time, between vectors of keys.
        vectors = shape.head_dim // products.lanes or 1
        lines = max(1, LANES * shape.cached_bytes // CACHE_LINE)
        every = next(n for n in (4, 2, 1) if n == 1 or steps * vectors >= n * lines)
        ahead = None
        if shape.rank is None:
            piece = LANES / (steps * -(-vectors // every))
            ahead = Ahead(self.values, low), every, piece
        with e.loop(low - low % LANES, high, LANES) as first:
            for start, stop, heads, pairs in blocks:
                with e.loop(start, stop, heads) as head:
                    apart = SUMS // pairs
                    with e.loop(0, apart) as pair:
                        tokens = [
                            self._tokens(first + (pair + index), low, high)
                            for index in range(0, SUMS, apart)
                        ]
                        self._multiply(products, (head, heads), tokens, pair, ahead)
                    for member in range(heads):
                        totals = [
                            e.total_of_each(
                                [self._sums(products, part, member, i)[0] for i in range(apart)]
                            )
                            for part in range(products.parts)
                        ]
                        row = self.out + (head + member) * PANEL
                        row[Span(first, LANES)] = products.scores(totals, head + member, first)
        if shape.has_scales and shape.rank is None:
            scales = value_scales(shape, self.scales)
            with e.loop(low, high) as token:
                scales[token] = self.values.scale(token)

    def _tokens(self, first: Value, low: Value, high: Value) -> _Tokens:
        """Return two tokens; others than those from low to high are not cached."""
        one, other = ((first + apart).at_least(low).at_most(high - 1) for apart in (0, SUMS))
        return one, other

    def _sums(self, products: Products[Any], part: int, member: Operand, pair: Operand) -> Pointer:
        """Return where a vector of sums is, of some head of those that are multiplied at a time."""
        first = self.memory + _rounded_floats(self.shape)
        number = self.keys.e.index(member) * SUMS + pair + part * _MOST_HEADS * SUMS
        return first.of(products.zero.type) + number

    def _multiply(
        self,
        products: Products[Any],
        heads: tuple[Value, int],
        tokens: list[_Tokens],
        pair: Value,
        ahead: tuple[Ahead, int, float] | None,
    ) -> None:
        """Write the sums that scores are made of, for some heads and pairs of tokens: of each pair a part of its lanes."""
        e, (head, count) = self.keys.e, heads
        for part in range(products.parts):
            totals = [[e.variable(products.zero) for _ in tokens] for _ in range(count)]
            for number, span in enumerate(products.spans(part)):
                if ahead is not None and number % ahead[1] == 0:
                    ahead[0].step(ahead[2])
                keys = [products.key(part, some, span) for some in tokens]
                for member, sums in enumerate(totals):
                    query = products.query(part, head + member, span)
                    for key, total in zip(keys, sums, strict=True):
                        total.value = products.add(total.value, key, query)
            for member, sums in enumerate(totals):
                some = e.total_of_each([total.value for total in sums], SUMS)
                self._sums(products, part, member, pair)[0] = some


def _products(scores: Scores) -> Products[Any]:
    if scores.shape.has_pairs:
        return _Pairs(scores)
    return _Integers(scores) if scores.shape.has_scales else _Floats(scores)


class _Floats:
    """Sums of every `SUMS`th product, each rounded once."""

    parts, lanes = 1, SUMS
    zero = constant(WIDE, 0.0)

    def __init__(self, scores: Scores) -> None:
        self._e, self._keys, self._shape = scores.keys.e, scores.keys, scores.shape
        self._queries = scores.queries

    def begin(self, low: Value, high: Value) -> None:
        pass

    def spans(self, part: int) -> Iterator[Span]:
        return each_some(self._e, self._shape.head_dim, SUMS)

    def key(self, part: int, tokens: _Tokens, span: Span) -> Value:
        return self._e.join([self._keys.at(token)[span] for token in tokens])

    def query(self, part: int, head: Value, span: Span) -> Value:
        numbers = (self._queries + head * self._shape.query_step)[span]
        return self._e.join([numbers, numbers])

    def add(self, total: Value, key: Value, query: Value) -> Value:
        return self._e.multiply_add(key, query, total)

    def scores(self, totals: list[Value], head: Value, first: Value) -> Value:
        return totals[0] * self._shape.scale


class _Pairs:
    """Sums of every `SUMS`th product, of numbers rounded to bf16."""

    parts, lanes = 1, BLOCK
    zero = constant(WIDE, 0.0)

    def __init__(self, scores: Scores) -> None:
        self._e, self._keys, self._shape = scores.keys.e, scores.keys, scores.shape
        self._pairs = Pairs(self._e)
        self._source, self._rounded = scores.queries, scores.memory

    def begin(self, low: Value, high: Value) -> None:
        shape = self._shape
        with self._e.loop(0, shape.group) as head:
            source = self._source + head * shape.query_step
            for (span,) in shape.each_span(self._e, 1, shape.head_dim):
                self._pairs.write(source, span, self._query(head))

    def spans(self, part: int) -> Iterator[Span]:
        return each_some(self._e, self._shape.head_dim, BLOCK)

    def key(self, part: int, tokens: _Tokens, span: Span) -> Pair:
        halves = (self._keys.at(token)[span].parts(2) for token in tokens)
        one, other = (self._e.join(both) for both in zip(*halves, strict=True))
        return self._pairs.make(one, other)

    def query(self, part: int, head: Value, span: Span) -> Pair:
        numbers = (self._query(head)[place] for place in self._pairs.spans(span.first))
        return [self._e.join([some, some]) for some in numbers]

    def add(self, total: Value, key: Pair, query: Pair) -> Value:
        return self._pairs.add(total, key, query)

    def scores(self, totals: list[Value], head: Value, first: Value) -> Value:
        return totals[0] * self._shape.scale

    def _query(self, head: Value) -> Pointer:
        return self._rounded + head * self._shape.padded


class _Integers:
    """Exact sums of an int8 cache's products with rounded queries."""

    lanes, zero = LANES, constant(TOTALS, 0)

    def __init__(self, scores: Scores) -> None:
        self._e, self._keys, self._shape = scores.keys.e, scores.keys, scores.shape
        self._source, self._key_scales = scores.queries, scores.scales
        self._parts: list[Part] = parts_of(scores.shape)
        self.parts = len(self._parts)
        self._rounded = scores.memory
        self._scales = scores.memory + self._shape.group * rounded_size(self._shape) // 2

    def begin(self, low: Value, high: Value) -> None:
        e, shape = self._e, self._shape
        with e.loop(0, shape.group) as head:
            source = self._source + head * shape.query_step
            round_query(e, shape, source, self._query(head), self._scales + head * self.parts)
        with e.loop(low, high) as token:
            for index, part in enumerate(self._parts):
                self._key_scales[token + index * PANEL] = part.key_scale(self._keys, token)

    def spans(self, part: int) -> Iterator[Span]:
        return each_some(self._e, self._parts[part].size, LANES)

    def key(self, part: int, tokens: _Tokens, span: Span) -> Value:
        integers = [self._parts[part].key(self._keys, token, span) for token in tokens]
        return widened(self._e, self._e.join(integers))

    def query(self, part: int, head: Value, span: Span) -> Value:
        # Behind the last number are zeros.
        place = Span(span.first + self._parts[part].rounded, LANES)
        integers = self._query(head)[place]
        return self._e.join([integers, integers])

    def add(self, total: Value, key: Value, query: Value) -> Value:
        return add_products(self._e, total, key, query)

    def scores(self, totals: list[Value], head: Value, first: Value) -> Value:
        here = [self._key_scales[Span(first + index * PANEL, LANES)] for index in range(self.parts)]
        scales = [self._scales[head * self.parts + index] for index in range(self.parts)]
        return score(self._e, totals, here, scales)

    def _query(self, head: Value) -> Pointer:
        return self._rounded.of(I16) + head * rounded_size(self._shape)


def _pairs_at_once(path: Path, heads: int) -> int:
    """Return how many pairs of keys are multiplied with so many heads' queries at a time."""
    return next(pairs for pairs in (4, 2, 1) if pairs <= others_at_once(path, heads))
