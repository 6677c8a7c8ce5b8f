"""How kernels of indexers score keys, and find the highest scores.

A score is kept as an integer that is ordered as the scores are. The least of the highest ones is found bit by bit, each
by one pass that counts: 32 passes over numbers that lie in a processor's cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.engine.kernels.attending.attention import LANES, WIDE
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    I32,
    I64,
    KIND_F32,
    KIND_INT8,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value

_INTEGERS = vector(I32, LANES)
_LOWEST = -(1 << 31)  # of the integers: below that of any score
_INFINITY = float("inf")
LOWEST_OF_EACH = constant(_INTEGERS, _LOWEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringHeads:
    """The small heads of an indexer. A score is scale · Σ w_h relu(q_h · k) over them."""

    heads: int
    head_dim: int
    scale: float

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def padded(self) -> int:
        """Numbers in the vectors of a key."""
        return -(-self.head_dim // LANES) * LANES


def load_columns(
    e: Emitter,
    places: Sequence[Pointer],
    kind: int,
    size: int,
    columns: Pointer,
    scale_at: int | None = None,
) -> None:
    """Write 16 keys of `size` numbers as columns, f32: number by number, with the keys side by side.

    Integers have their scale behind them, or behind `scale_at` numbers.
    """
    scales = [
        None if kind != KIND_INT8 else place.skip(scale_at or size).of(KIND_F32)[0]
        for place in places
    ]
    for span in e.spans(size, LANES):
        numbers = [
            place[span] if scale is None else place[span] * e.splat(scale, LANES)
            for place, scale in zip(places, scales, strict=True)
        ]
        target = columns + span.first * LANES
        for index, column in enumerate(e.transpose(numbers)):
            (target + index * LANES).of(WIDE)[0] = column


def score(
    e: Emitter, shape: ScoringHeads, queries: Pointer, weights: Pointer, columns: Pointer
) -> Value:
    """Return the scores of 16 keys: the heads' products, where above zero, times their weights."""
    total = e.variable(constant(WIDE, 0.0))
    most = 8 if e.path.registers >= 32 else 4
    whole = shape.heads - shape.heads % most
    blocks = ((0, whole, most), (whole, shape.heads, shape.heads - whole))
    for start, stop, count in (block for block in blocks if block[0] < block[1]):
        with e.loop(start, stop, count) as head:
            some = queries + head * shape.head_dim
            sums = [e.variable(constant(WIDE, 0.0)) for _ in range(count)]
            with e.loop(0, shape.head_dim) as number:
                column = (columns + number * LANES).of(WIDE)[0]
                for member, one in enumerate(sums):
                    query = e.splat((some + member * shape.head_dim)[number], LANES)
                    one.value = e.multiply_add(query, column, one.value)
            for member, one in enumerate(sums):
                weight = e.splat(weights[head + member] * shape.scale, LANES)
                # Unordered: a product that is NaN stays one.
                is_above = e.fcmp_unordered(">", one.value, constant(WIDE, 0.0))
                above = e.select(is_above, one.value, constant(WIDE, 0.0))
                total.value = e.multiply_add(above, weight, total.value)
    return total.value


def ordered(e: Emitter, scores: Value) -> Value:
    """Return integers that are ordered as the scores: zeros are equal, and NaN is as infinity."""
    is_nan = e.fcmp_unordered("uno", scores, scores)
    scores = e.select(is_nan, constant(WIDE, _INFINITY), scores + 0.0)  # -0 becomes 0
    bits = e.bitcast(scores, _INTEGERS)
    return bits ^ (bits.shifted_signed(31) & 0x7FFFFFFF)


def find_highest(e: Emitter, scores: Pointer, count: Value, chosen: int, places: Pointer) -> None:
    """Write the places of the `chosen` highest of so many scores; of those equal to the least of them, the first ones.

    Behind the last score, as far as a vector reaches, there must be the lowest ones. One place more is written to.
    """
    wanted = e.index(chosen)
    whole = (count + (LANES - 1)) // LANES * LANES  # what is behind the last token is the lowest
    found = e.variable(constant(I32, _LOWEST))
    with e.loop(0, 32) as index:
        higher = found.value ^ e.shl(constant(I32, 1), e.trunc(31 - index, I32))
        of_each = e.splat(higher, LANES)
        number = _count(e, scores, whole, of_each.__le__)
        found.value = e.select(number >= wanted, higher, found.value)
    least = found.value
    above = _count(e, scores, whole, e.splat(least, LANES).__lt__)
    equal, place = e.variable(wanted - above), e.variable(e.index(0))
    with e.loop(0, count) as position:
        one = scores[position]
        is_equal = one.equals(least) & (equal.value > 0)
        equal.value = equal.value - e.zext(is_equal, I64)
        places[place.value] = position  # overwritten by the next one, unless it is taken
        place.value = place.value + e.zext(is_equal | (one > least), I64)


def _count(e: Emitter, scores: Pointer, whole: Value, condition: Callable[[Value], Value]) -> Value:
    """Return of how many scores the condition holds."""
    sums = e.variable(constant(_INTEGERS, 0))
    with e.loop(0, whole, LANES) as index:
        sums.value = sums.value + e.zext(condition(scores[Span(index, LANES)]), _INTEGERS)
    return e.zext(sums.value.reduce("add"), I64)
