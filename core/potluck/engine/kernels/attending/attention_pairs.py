"""Products beside packed weights: queries, powers and an f16 cache are cut to bf16, of which an instruction adds two products.

`vdpbf16ps` adds the product of the upper halves of two lanes to a sum, then that of the lower halves, and rounds after
each. A product of two bf16 is exact in f32, so other processors do the same with two multiply-adds, which
is as many as for numbers that are not rounded. A *pair* is two vectors of f32 that bf16 can hold: on processors
with that instruction it is one vector, of whose lanes each has two bf16.

The instruction takes numbers below the normal ones as zero. So no such number may come about: queries and powers below
`_LEAST` are zero, and a cache's are multiples of 2^-24.
"""

from dataclasses import dataclass
from itertools import starmap

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    I16,
    I32,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value

Pair = list[Value]
TOGETHER = 8  # numbers that lie side by side, before those that they are paired with
BLOCK = 2 * TOGETHER  # numbers in which each is paired with another
_LEAST = 2.0**-64
_UPPER = -(1 << 16)  # the bits of an f32 that bf16 has
_HALF = 1 << 15  # of the last one of these


class _Brain(ir.Type):
    """The bf16 of LLVM, which llvmlite does not know."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Brain)

    def __hash__(self) -> int:
        return hash(_Brain)


_BRAIN = _Brain()


def round_to_bf16(numbers: Value) -> Value:
    """Return f32 that bf16 can hold, rounded to nearest, ties away from zero; zero below `_LEAST`. A NaN of arithmetic stays one."""
    e, bits = numbers.e, vector(I32, numbers.type.count)
    is_small = e.bitcast(numbers.magnitude_bits(), numbers.type) < _LEAST
    rounded = e.bitcast((e.bitcast(numbers, bits) + _HALF) & _UPPER, numbers.type)
    return e.select(is_small, constant(numbers.type, 0.0), rounded)


def starts_in_block(path: Path) -> range:
    """Return where the numbers of each vector of a pair begin among those of a block in memory."""
    return range(0, TOGETHER if path.multiplies_bf16 else BLOCK, TOGETHER)


@dataclass(frozen=True)
class Pairs:
    """Makes pairs, and multiplies them."""

    e: Emitter

    @property
    def is_packed(self) -> bool:
        """Whether a pair is one vector."""
        return self.e.path.multiplies_bf16

    def make(self, one: Value, other: Value) -> Pair:
        """Return the pair of two vectors of f32; bits that bf16 does not have are cut off."""
        e, bits = self.e, vector(I32, one.type.count)
        lower, upper = e.bitcast(one, bits), e.bitcast(other, bits) & _UPPER
        made = [(lower >> 16) | upper] if self.is_packed else [lower & _UPPER, upper]
        return [e.bitcast(some, one.type) for some in made]

    def add(self, total: Value, some: Pair, others: Pair) -> Value:
        """Return the total plus the products of both numbers of each lane."""
        e = self.e
        if self.is_packed:
            brains = vector(_BRAIN, 2 * total.type.count)
            arguments = [total, *(e.bitcast(pair[0], brains) for pair in (some, others))]
            return e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", total.type, arguments)
        for one, other in reversed(list(zip(some, others, strict=True))):
            # The product is exact.
            total = e.multiply_add(one, other, total) if e.path.fuses else total + one * other
        return total

    def spans(self, first: Operand) -> list[Span]:
        """Return where pairs are, beside others in memory, of the block that begins with some number."""
        starts = starts_in_block(self.e.path)
        place = self.e.index(first) * len(starts) // 2
        return [Span(place + start, TOGETHER) for start in starts]

    def write(self, source: Pointer, span: Span, out: Pointer) -> None:
        """Round a block of f32, and write its pairs among others."""
        pair = self.make(*round_to_bf16(source[span]).parts(2))
        for place, numbers in zip(self.spans(span.first), pair, strict=True):
            out[place] = numbers

    def columns(self, numbers: list[Value]) -> list[Value]:
        """Return the pairs of the columns of a block, in the order in which pairs are in memory."""
        both = zip(numbers[:TOGETHER], numbers[TOGETHER:], strict=True)
        return [some for vectors in zip(*starmap(self.make, both), strict=True) for some in vectors]

    def values(self, one: Pointer, other: Pointer, span: Span) -> Pair:
        """Return the pair of two tokens' values."""
        return self.make(one[span], other[span])

    def write_powers(self, powers: Pointer, here: Span, numbers: Value) -> Value:
        """Write rounded powers of tokens in their place, or before it; return them."""
        rounded = round_to_bf16(numbers)
        if self.is_packed:
            bits = self.e.bitcast(rounded, vector(I32, LANES)) >> 16
            powers.of(I16)[here] = self.e.trunc(bits, vector(I16, LANES))
        else:
            powers[here] = rounded
        return rounded

    def powers(self, powers: Pointer, token: Value) -> Pair:
        """Return the pair of a token's power and the next one's, in every lane."""
        e = self.e
        if self.is_packed:
            return [e.splat(powers.skip(token, 2)[0], LANES)]
        return [e.splat(powers[token + index], LANES) for index in range(2)]
