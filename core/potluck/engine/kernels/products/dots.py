"""The dot product of a processor: 16 rows times four inputs, unsigned weights and signed inputs.

A kernel sums the 32 inputs of a group in eight steps, from a start value:

    state = dot.begin(start)                      start: <16 x i32>
    state = dot.step(state, weights, inputs)      weights: <64 x i8>, four of each row; inputs: an i32
    total = dot.end(state)                        <16 x i32>
    total = dot.multiplied(state, multiples)      <16 x f32>: the same times <16 x i8> without signs

The sum is exact on every processor, and so is that times multiples, which 24 bits hold: 32 x 15 x 127 x 255.
`zero_point` is what the kernel's start value has to subtract from
the weights: that of the format, or 0 where the step has subtracted it.
"""

from abc import ABC, abstractmethod
from typing import Protocol

from potluck.engine.kernels.layout import GROUP, LARGEST, ROWS, VECTOR
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I1, I8, I16, I32, constant, vector
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import PackedFormat

State = list[Value]
_WIDE = vector(F32, ROWS)
_SHIFT = 0x80  # flipped in an unsigned byte, it leaves the signed byte that is 128 less


class Dot(Protocol):
    """Sums a group, as the module says."""

    zero_point: int

    def begin(self, e: Emitter, start: Value) -> State: ...
    def step(self, e: Emitter, state: State, weights: Value, inputs: Value) -> State: ...
    def end(self, e: Emitter, state: State) -> Value: ...
    def multiplied(self, e: Emitter, state: State, multiples: Value) -> Value: ...


def make_dot(path: Path, held: PackedFormat) -> Dot:
    """Return the dot product that the path's processors have, for the integers of a format."""
    match path.dot:
        case "vnni512":
            return Vnni(held, lanes=16)
        case "vnni256":
            return Vnni(held, lanes=8)
        case "avx2":
            return Avx2Nibbles(held) if held.is_nibbles else Avx2Bytes(held)
        case "usdot":
            return ArmUnsigned(held, lanes=4)
        case "sdot":
            return ArmSigned(held, lanes=4)
        case "plain":
            return Plain(held)


class _Ending(ABC):
    """Multiplies what was summed."""

    @abstractmethod
    def end(self, e: Emitter, state: State) -> Value: ...

    def multiplied(self, e: Emitter, state: State, multiples: Value) -> Value:
        """As f32: products of 32-bit integers take x86 twice as long."""
        return e.sitofp(self.end(e, state), _WIDE) * e.uitofp(multiples, _WIDE)


class _InLanes(_Ending):
    """An instruction that adds four products to each 32-bit lane, on vectors of some length."""

    def __init__(self, held: PackedFormat, lanes: int) -> None:
        self.zero_point = held.zero_point
        self._lanes = lanes

    def begin(self, e: Emitter, start: Value) -> State:
        return start.parts(ROWS // self._lanes)

    def step(self, e: Emitter, state: State, weights: Value, inputs: Value) -> State:
        repeated = e.splat(inputs, self._lanes)
        parts = zip(state, weights.parts(len(state)), strict=True)
        return [self._add(e, total, weight, repeated) for total, weight in parts]

    def end(self, e: Emitter, state: State) -> Value:
        return e.join(state)

    @abstractmethod
    def _add(self, e: Emitter, total: Value, weight: Value, inputs: Value) -> Value: ...


class Vnni(_InLanes):
    """`vpdpbusd` of AVX-512 VNNI and AVX-VNNI."""

    def _add(self, e: Emitter, total: Value, weight: Value, inputs: Value) -> Value:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self._lanes}"
        return e.intrinsic(name, total.type, [total, e.bitcast(weight, total.type), inputs])


class ArmUnsigned(_InLanes):
    """`usdot` of arm64 with i8mm.

    `usmmla`, which such a processor has too, multiplies eight inputs of two rows by those of two tokens. It is not used: packed
    bytes have four inputs of a row side by side, so that 64 of it would come with 48 that move lanes. A group of inputs
    would take 314 instructions in place of 347 for four tokens with int4, and 275 in place of 330 with int8; every
    dot product would need a second form for it.
    """

    def _add(self, e: Emitter, total: Value, weight: Value, inputs: Value) -> Value:
        name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
        return e.intrinsic(name, total.type, [total, weight, e.bitcast(inputs, weight.type)])


class ArmSigned(_InLanes):
    """`sdot` of arm64. Unsigned int4 already fits int8; uint8 is shifted by 128."""

    def __init__(self, held: PackedFormat, lanes: int) -> None:
        super().__init__(held, lanes)
        self._is_shifted = not held.is_nibbles
        self.zero_point -= _SHIFT if self._is_shifted else 0

    def _add(self, e: Emitter, total: Value, weight: Value, inputs: Value) -> Value:
        if self._is_shifted:
            weight = weight ^ _SHIFT
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return e.intrinsic(name, total.type, [total, weight, e.bitcast(inputs, weight.type)])


class Avx2Nibbles:
    """`vpmaddubsw` adds two products into 16 bits, which hold all 32 inputs: 16 x 15 x 127 < 2**15.

    Of larger integers, every other step adds to sums of its own: 8 x 24 x 127 < 2**15.
    """

    _PARTS = 2

    def __init__(self, held: PackedFormat) -> None:
        self.zero_point = held.zero_point
        self._sets = 1 if _sums_fit(held) else 2

    def begin(self, e: Emitter, start: Value) -> State:
        empty = e.value(constant(vector(I16, 16), 0))
        return [*start.parts(self._PARTS), *(empty for _ in range(self._PARTS * self._sets))]

    def step(self, e: Emitter, state: State, weights: Value, inputs: Value) -> State:
        starts, sums = state[: self._PARTS], state[self._PARTS :]
        repeated = e.splat(inputs, 8)
        some, others = sums[: self._PARTS], sums[self._PARTS :]
        parts = zip(some, weights.parts(self._PARTS), strict=True)
        return [*starts, *others, *(one + _pairs(e, weight, repeated) for one, weight in parts)]

    def end(self, e: Emitter, state: State) -> Value:
        return self._added(e, state, [_ones(e)] * self._PARTS)

    def multiplied(self, e: Emitter, state: State, multiples: Value) -> Value:
        """What adds the pairs multiplies them as well."""
        assert self.zero_point == 0, "the start value would have to be multiplied too"
        count, zeros = ROWS // self._PARTS, constant(multiples.type, 0)
        factors: list[Value] = []
        for first in range(
            0, ROWS, count
        ):  # 16 bits for each number of a pair: the byte, and one of `zeros`
            lanes = [i for row in range(first, first + count) for i in (row, ROWS, row, ROWS)]
            octets = e.shuffle_vector(multiples, zeros, constant(vector(I32, len(lanes)), lanes))
            factors.append(e.bitcast(octets, vector(I16, 2 * count)))
        return e.sitofp(self._added(e, state, factors), _WIDE)

    def _added(self, e: Emitter, state: State, factors: list[Value]) -> Value:
        totals, sums = state[: self._PARTS], state[self._PARTS :]
        for first in range(0, len(sums), self._PARTS):
            parts = zip(totals, sums[first : first + self._PARTS], factors, strict=True)
            totals = [_add_pairs(e, *part) for part in parts]
        return e.join(totals)


class Avx2Bytes(_Ending):
    """`vpmaddubsw` with the sign of the input moved to the weight: |input| x ±(weight - 128).

    Two products of unsigned weights would overflow 16 bits; of these they are at most 2 x 127 x 127 < 2**15.
    """

    _PARTS = 2

    def __init__(self, held: PackedFormat) -> None:
        self.zero_point = held.zero_point - _SHIFT

    def begin(self, e: Emitter, start: Value) -> State:
        return start.parts(self._PARTS)

    def step(self, e: Emitter, state: State, weights: Value, inputs: Value) -> State:
        signs = e.bitcast(e.splat(inputs, 8), vector(I8, 32))
        sizes = e.intrinsic("llvm.abs.v32i8", signs.type, [signs, constant(I1, 0)])
        totals = []
        for total, weight in zip(state, weights.parts(self._PARTS), strict=True):
            arguments = [weight ^ _SHIFT, signs]
            signed = e.intrinsic("llvm.x86.avx2.psign.b", weight.type, arguments)
            totals.append(_add_pairs(e, total, _pairs(e, sizes, signed), _ones(e)))
        return totals

    def end(self, e: Emitter, state: State) -> Value:
        return e.join(state)


class Plain(_Ending):
    """Additions and multiplications of 16 bits, which every processor has; a product fits: 255 x 127."""

    def __init__(self, held: PackedFormat) -> None:
        self.zero_point = held.zero_point
        self._sums_fit = _sums_fit(held)

    def begin(self, e: Emitter, start: Value) -> State:
        return [start, e.value(constant(vector(I16, VECTOR // 2), 0))]

    def step(self, e: Emitter, state: State, weights: Value, inputs: Value) -> State:
        total, sums = state
        pairs = vector(I16, VECTOR // 2)
        weights = e.bitcast(weights, pairs)
        inputs = e.bitcast(e.splat(inputs, ROWS), pairs)
        even = (weights & 0xFF) * (inputs << 8).shifted_signed(8)
        odd = (weights >> 8) * inputs.shifted_signed(8)
        if self._sums_fit:
            return [total, sums + (even + odd)]
        return [total + (_widened(e, even) + _widened(e, odd)), sums]

    def end(self, e: Emitter, state: State) -> Value:
        total, sums = state
        return total + _widened(e, sums) if self._sums_fit else total


def _sums_fit(held: PackedFormat) -> bool:
    """Whether 16 bits hold the products of half a group, which is what is added to one of two sums."""
    return GROUP // 2 * (held.limits[1] + held.zero_point) * LARGEST < 1 << 15


def _widened(e: Emitter, pairs: Value) -> Value:
    """Return the sum of both 16-bit halves of each 32-bit lane."""
    both = e.bitcast(pairs, vector(I32, ROWS))
    return (both << 16).shifted_signed(16) + both.shifted_signed(16)


def _pairs(e: Emitter, unsigned: Value, signed: Value) -> Value:
    """AVX2: return sums of two neighbouring products, in 16 bits."""
    halves, octets = vector(I16, 16), vector(I8, 32)
    arguments = [e.bitcast(unsigned, octets), e.bitcast(signed, octets)]
    return e.intrinsic("llvm.x86.avx2.pmadd.ub.sw", halves, arguments)


def _add_pairs(e: Emitter, total: Value, pairs: Value, factors: Value) -> Value:
    """AVX2: return the 32-bit lanes plus neighbouring 16-bit sums, each times its factor."""
    return total + e.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, [pairs, factors])


def _ones(e: Emitter) -> Value:
    return e.value(constant(vector(I16, ROWS), 1))
