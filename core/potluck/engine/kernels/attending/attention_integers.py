"""Products of an int8 cache: its integers with queries and powers that are rounded to integers of 16 bits.

Their sums are exact, so that they may be added in any order. What is rounded has 256 times as many steps as
the cache, whose own rounding outweighs it.
"""

from dataclasses import dataclass

from potluck.engine.kernels.attending.attention import LANES, PANEL, Attended, Cached
from potluck.engine.kernels.layout import CACHE_SCALE_BYTES, LARGEST
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_integers, emit_scale
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I16,
    I32,
    KIND_F32,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value

TOTALS = vector(I32, LANES)
SHORTS = vector(I16, 2 * LANES)  # two for each lane of the totals
_LARGEST_SHORT = 2**15 - 1
_LARGEST_TOTAL = 2**31 - 1
# Of a token's power times its value's scale. A panel's sums of such products fit a total.
LARGEST_POWER = _LARGEST_SHORT
assert PANEL * LARGEST_POWER * LARGEST <= _LARGEST_TOTAL


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers of a key that share a scale."""

    begin: int  # in a query
    size: int
    place: int  # bytes from the beginning of a cached key; the scale follows the integers
    rounded: int  # where they begin in a rounded query

    @property
    def padded(self) -> int:
        """Numbers in whole vectors."""
        return -(-self.size // LANES) * LANES

    @property
    def largest(self) -> int:
        """The largest integer of a rounded query. The sum of the products with a key fits a total."""
        return min(_LARGEST_SHORT, _LARGEST_TOTAL // (self.size * LARGEST))

    def key(self, cached: Cached, token: Operand, span: Span) -> Value:
        """Integers of a cached key, of 8 bits."""
        return cached.at(token).skip(self.place).of(I8)[span]

    def key_scale(self, cached: Cached, token: Operand) -> Value:
        """What a cached key's integers are multiplied with."""
        return cached.at(token).skip(self.place + self.size).of(KIND_F32)[0]


def parts_of(shape: Attended) -> list[Part]:
    """Return the parts of a key that have a scale of their own."""
    if shape.rank is None:
        return [Part(0, shape.head_dim, 0, 0)]
    latent = Part(0, shape.rank, 0, 0)
    place = shape.rank + CACHE_SCALE_BYTES
    return [latent, Part(shape.rank, shape.head_dim - shape.rank, place, latent.padded)]


def rounded_size(shape: Attended) -> int:
    """Return how many integers a rounded query has; each part is filled up with zeros."""
    return sum(part.padded for part in parts_of(shape))


def round_query(e: Emitter, shape: Attended, query: Pointer, out: Pointer, scales: Pointer) -> None:
    """Write a query as integers of 16 bits, and for each part what products with them are multiplied with."""
    for index, part in enumerate(parts_of(shape)):
        source, target = query + part.begin, out.of(I16) + part.rounded
        largest = e.variable(constant(TOTALS, 0))
        for span in e.spans(part.size, LANES):
            largest.value = source[span].magnitude_bits().at_least(largest.value)
        most = e.bitcast(largest.value.reduce("umax"), F32)
        scale, inverse = emit_scale(e, most, part.largest)
        for span in e.spans(part.size, LANES):
            integers = emit_integers(e, source[span], inverse, part.largest)
            # What lies beyond a masked span is zero.
            target[Span(span.first, LANES)] = e.trunc(integers, vector(I16, LANES))
        scales[index] = scale * shape.scale


def score(e: Emitter, totals: list[Value], key_scales: list[Value], scales: list[Value]) -> Value:
    """Return the scores of `LANES` keys, of which each part has a total, scales of the keys and of the query."""
    result = None
    for total, key_scale, scale in zip(totals, key_scales, scales, strict=True):
        numbers = e.sitofp(total, vector(F32, LANES))
        factor = key_scale * scale
        result = numbers * factor if result is None else e.multiply_add(numbers, factor, result)
    assert result is not None
    return result


def write_integer_columns(
    shape: Attended, columns: int, keys: Cached, tokens: list[Value], target: Pointer
) -> None:
    """Write the integers of some keys, two neighbouring ones of all tokens after the other."""
    e = keys.e
    for part in parts_of(shape):
        for (span,) in shape.each_span(e, 1, part.size):
            column = target + ((span.first + part.rounded) // 2) * columns
            halves = [e.sext(part.key(keys, token, span), vector(I16, LANES)) for token in tokens]
            pairs = [e.bitcast(half, vector(I32, LANES // 2)) for half in halves]
            # The transpose is of as many rows as a row has numbers.
            both = zip(*(e.transpose(pairs[i : i + 8]) for i in (0, 8)), strict=True)
            for index, some in enumerate(both):
                (column + index * columns).of(TOTALS)[0] = e.join(list(some))


def widened(e: Emitter, integers: Value) -> Value:
    """Return `SHORTS` of as many integers of 8 bits."""
    return e.sext(integers, SHORTS)


def add_products(e: Emitter, total: Value, one: Value, other: Value) -> Value:
    """Return totals plus the products of `SHORTS`, two for each lane."""
    if e.path.architecture == "x86_64":
        return total + _pairs(e, one, other)
    for lane in (0, 1):
        lanes = constant(TOTALS, range(lane, 2 * LANES, 2))
        factors = (e.sext(e.shuffle_vector(some, some, lanes), TOTALS) for some in (one, other))
        first, second = factors
        total = total + first * second
    return total


@dataclass(frozen=True)
class IntegerPairs:
    """Values of two tokens at a time, times their powers, which are integers too."""

    e: Emitter

    def values(self, one: Pointer, other: Pointer, span: Span) -> Value:
        """Return a vector of two tokens' values, of which each lane has two integers."""
        e, both = self.e, [some.of(I8)[span] for some in (one, other)]
        order = [lane // 2 + lane % 2 * LANES for lane in range(2 * LANES)]
        halves = [
            e.shuffle_vector(*both, constant(vector(I32, LANES), order[start : start + LANES]))
            for start in (0, LANES)
        ]
        return e.join([e.sext(half, vector(I16, LANES)) for half in halves])

    def powers(self, powers: Pointer, token: Value) -> Value:
        """Return a token's power and the next one's, in every lane."""
        both = powers.skip(token, 2).of(I32)[0]
        return self.e.bitcast(self.e.splat(both, LANES), SHORTS)

    def add(self, total: Value, values: Value, powers: Value) -> Value:
        """Return the total plus the products of both."""
        return add_products(self.e, total, values, powers)


def _pairs(e: Emitter, one: Value, other: Value) -> Value:
    """`vpmaddwd`: return the sums of two neighbouring products."""
    if "avx512bw" in e.path.needs:
        return e.intrinsic("llvm.x86.avx512.pmaddw.d.512", TOTALS, [one, other])
    halves = zip(one.parts(2), other.parts(2), strict=True)
    name, half = "llvm.x86.avx2.pmadd.wd", vector(I32, LANES // 2)
    return e.join([e.intrinsic(name, half, list(both)) for both in halves])
