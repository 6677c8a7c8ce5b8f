"""The kernel that packs weights: finds each group's scale and writes the integers as products read them.

A block of 16 rows x 32 inputs is read row by row and transposed, so that the 16 rows are the lanes of
vectors and all 16 scales are found at once. Each format finds them in its own way (`scale_search.py`).

Where scales and offsets are multiples of steps, a super-block is read three times: to find its groups' lines, and so
the largest scale, which is the largest multiple of the step; to fit the offsets to the scales as they are stored; and to
write the integers, when the step of the offsets is known as well.

All arithmetic is exact IEEE 754 in a fixed order: every processor, and the reference in torch, packs
the same weights into the same bytes. The kernel refuses what is not finite.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.layout import (
    AT_LEAST_STEPS,
    GROUP,
    HALF_OF_LEAST,
    LARGEST_MULTIPLE,
    LARGEST_SCALE,
    LEAST_NORMAL,
    NOTHING,
    QUAD,
    ROWS,
    code_middles,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.block_kernel import BlockRow
from potluck.engine.kernels.products.scale_search import (
    FIND,
    INFINITY_BITS,
    Group,
    Weighting,
    each_column,
    largest_of,
    nearest_integer,
)
from potluck.engine.kernels.products.tensors import F32_EXPONENT
from potluck.engine.kernels.writing.emit import Emitter, Variable
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I16,
    I32,
    KIND_BF16,
    KIND_F16,
    KIND_F32,
    POINTER,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.kinds import from_half, to_half
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span, stack
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import STEP_BYTES, PackedFormat


class Pack(Record):
    """The arguments of packing: whole blocks of 16 rows, and whole groups of 32 inputs."""

    source = Address(I8)  # (16 blocks, 32 groups)
    kind = Number()  # of the source's numbers
    stride = Number()  # numbers from one row to the next
    groups = Number()
    blocks = Number()
    packed = Address(I8)


# A `Pack` → 1 if all numbers are finite, otherwise 0.
PACK = ir.FunctionType(I32, [POINTER])

_WIDE = vector(F32, ROWS)
_BITS = vector(I32, ROWS)


def emit_pack(module: ir.Module, name: str, path: Path, weight_format: PackedFormat) -> ir.Function:
    """Write the kernel that packs whole blocks of 16 rows and whole groups of 32 inputs."""
    has_codes = weight_format.codes is not None
    code = _emit_code(module, f"{name}_code", path, weight_format) if has_codes else None
    e = Emitter(ir.Function(module, PACK, name), path)
    given = Pack.load(e.arguments[0])
    packing = _Packing(
        e=e,
        held=weight_format,
        given=given,
        columns=stack(e, _WIDE, GROUP),
        highest=e.variable(constant(_BITS, 0)),
        code=code,
    )
    pack_row = packing.super_blocks if weight_format.has_steps else packing.groups
    with e.loop(0, given.blocks) as number:
        pack_row(number * ROWS * given.stride, packing.row(number))
    is_finite = packing.highest.value.reduce("umax") < INFINITY_BITS
    return e.end(e.zext(is_finite, I32))


@dataclass(frozen=True, kw_only=True)
class _Packing:
    """The kernel that is being written."""

    e: Emitter
    held: PackedFormat
    given: Pack
    columns: Pointer  # the numbers of a group: 32 vectors, one for each input, of which the 16 rows are lanes
    highest: Variable  # magnitude of any number, as bits
    code: ir.Function | None  # what finds the codes, if the format has some

    def row(self, number: Value) -> BlockRow:
        """The row of blocks of this number."""
        return BlockRow.of(self.held, self.given.packed, number, self.given.groups)

    def groups(self, start: Value, row: BlockRow) -> None:
        """Pack a row of blocks whose numbers begin with the number `start`."""
        with row.each() as (group, block):
            self._read(start + group * GROUP)
            self._pack_group(block.start)

    def super_blocks(self, start: Value, row: BlockRow) -> None:
        """Pack a row of blocks whose scales and offsets are multiples of steps.

        Until its integers are written, their place in a block holds its scales and offsets.
        """
        e, held = self.e, self.held
        with row.each_super_block() as each:
            first, count, place = each.first, each.count, each.place

            def places(number: Value) -> Pointer:
                block = row.block(first + number)
                return block.start.skip(held.integers_start).of(_WIDE)

            with e.loop(0, count) as number:
                self._read(start + (first + number) * GROUP)
                scale, offset = self._found()
                places(number)[0], places(number)[1] = scale, offset
            scales = self._put_step(0, places, count, place)
            with e.loop(0, count) as number:
                self._read(start + (first + number) * GROUP)
                multiple = scales.multiple(places(number)[0])
                offset = self._fitted_offset(multiple * scales.step, places(number)[1])
                places(number)[0], places(number)[1] = multiple, offset
            offsets = self._put_step(1, places, count, place.skip(STEP_BYTES // 2))
            with e.loop(0, count) as number:
                self._read(start + (first + number) * GROUP)
                multiples = places(number)[0], offsets.multiple(places(number)[1])
                self._pack_multiples(row.block(first + number).start, multiples, (scales, offsets))

    def _put_step(
        self, which: int, places: Callable[[Value], Pointer], count: Value, place: Pointer
    ) -> "_Step":
        """Store the step of which the largest of so many numbers is the largest multiple."""
        most = self.e.variable(constant(_WIDE, 0.0))
        with self.e.loop(0, count) as number:
            most.value = places(number)[which].at_least(most.value)
        step = most.value / LARGEST_MULTIPLE
        small = (step + HALF_OF_LEAST + AT_LEAST_STEPS) - AT_LEAST_STEPS
        step = _put_half(self.e.select(step < LEAST_NORMAL, small, step), place)
        return _Step(step, _inverse(step))

    def _read(self, first: Value) -> None:
        """Load a group, from this number on."""
        with self.e.loop(0, GROUP, ROWS) as column:
            _read_square(self.e, self.given, first + column, self.columns + column)

    def _found(self) -> tuple[Value, Value | None]:
        """Find the scales of a group, and the offsets if the format has them."""
        e = self.e
        signed, bits = largest_of(e, self.columns)
        self.highest.value = bits.at_least(self.highest.value)
        largest = e.bitcast(bits, _WIDE)
        group = Group(columns=self.columns, signed=signed, largest=largest)
        scale, offset = FIND[self.held](e, group)
        zero = e.value(constant(_WIDE, 0.0))
        return e.select(largest < NOTHING, zero, scale), offset

    def _pack_group(self, target: Pointer) -> None:
        """Write 16 scales, offsets if the format has them, and the integers."""
        held = self.held
        scale, offset = self._found()
        if offset is not None and held.offsets_start is not None:
            offset = _put_half(offset, target.skip(held.offsets_start))
        put = _put_half if held.scale_bytes > 1 else _put_exponents
        self._write_integers(put(scale, target), offset, target)

    def _fitted_offset(self, scale: Value, offset: Value) -> Value:
        """The offset that fits best to the integers that a scale and another offset give."""
        e = self.e
        inverse, weighting = _inverse(scale), Weighting.of(e, self.columns)
        sums = [e.variable(constant(_WIDE, 0.0)) for _ in range(3)]
        for number in each_column(e, self.columns):
            integer = nearest_integer(self.held, (number + offset) * inverse)
            weight = weighting.weight(number)
            for total, part in zip(sums, (weight, weight * integer, weight * number), strict=True):
                total.value = total.value + part
        s, q, n = (one.value for one in sums)
        return ((scale * q - n) / s).at_least(0.0)

    def _pack_multiples(
        self, target: Pointer, multiples: tuple[Value, Value], steps: "tuple[_Step, _Step]"
    ) -> None:
        """Write the multiples of a group, those of scales and of offsets, and the integers."""
        e, held = self.e, self.held
        assert held.offsets_start is not None
        for multiple, start in zip(multiples, (0, held.offsets_start), strict=True):
            octets = e.trunc(e.fptosi(multiple, _BITS), vector(I8, ROWS))
            target.skip(start).of(I8)[Span(0, ROWS)] = octets
        scale, offset = (one * of.step for one, of in zip(multiples, steps, strict=True))
        self._write_integers(scale, offset, target)

    def _write_integers(self, scale: Value, offset: Value | None, target: Pointer) -> None:
        """Store the integers plus their zero point, by the scale and any offset; 32 bits hold four inputs of a row.

        The numbers are replaced where the format has codes.
        """
        e, held, columns, code = self.e, self.held, self.columns, self.code
        inverse, integers = _inverse(scale), target.skip(held.integers_start)
        codes = columns.of(_BITS)
        if code is not None:
            # In place of the numbers: written out, each call would have stack of its own on Windows.
            with e.loop(0, GROUP) as number:
                codes[number] = e.call(code, [columns[number] * inverse])

        def stored(number: int) -> Value:
            if code is not None:
                return codes[number]
            column = columns[number]
            steps = (column if offset is None else column + offset) * inverse
            return e.fptosi(nearest_integer(held, steps) + float(held.zero_point), _BITS)

        def quad(number: int) -> Value:
            packed = e.value(constant(_BITS, 0))
            for place in range(QUAD):
                packed = packed | (stored(QUAD * number + place) << (8 * place))
            return packed

        half = GROUP // QUAD // 2
        if held.is_nibbles:
            vectors = [quad(number) | (quad(half + number) << 4) for number in range(half)]
        else:
            vectors = [quad(number) for number in range(2 * half)]
        for index, packed in enumerate(vectors):
            integers.of(_BITS)[index] = packed


def _read_square(e: Emitter, given: Pack, first: Value, columns: Pointer) -> None:
    """Load 16 rows x 16 inputs, from the number `first` on, as 16 vectors of 16 rows."""
    with (
        e.loop(0, ROWS) as row,
        e.each_kind(given.kind, (KIND_F32, KIND_BF16, KIND_F16)) as kinds,
    ):
        for kind in kinds:
            columns[row] = given.source.of(kind)[Span(first + row * given.stride, ROWS)]
    rows = [columns[row] for row in range(ROWS)]
    for number, column in enumerate(e.transpose(rows)):
        columns[number] = column


def _put_half(numbers: Value, place: Pointer) -> Value:
    """Store numbers as f16; return them as they are stored, f32."""
    half = to_half(numbers.at_least(-LARGEST_SCALE).at_most(LARGEST_SCALE))
    place.of(I16)[Span(0, ROWS)] = half
    return from_half(half)


def _put_exponents(numbers: Value, place: Pointer) -> Value:
    """Store powers of two, and zeros, as their exponents; return them."""
    e = numbers.e
    exponents = e.bitcast(numbers, _BITS) >> F32_EXPONENT
    place.of(I8)[Span(0, ROWS)] = e.trunc(exponents, vector(I8, ROWS))
    return numbers


@dataclass(frozen=True)
class _Step:
    """The step of 16 rows of a super-block, as it is stored, and its inverse."""

    step: Value
    inverse: Value

    def multiple(self, numbers: Value) -> Value:
        """The nearest multiples, as f32."""
        return (numbers * self.inverse).at_least(0.0).at_most(LARGEST_MULTIPLE).rounded()


def _inverse(numbers: Value) -> Value:
    """1 / numbers, and 0 of 0."""
    e = numbers.e
    return e.select(numbers.equals(0.0), e.value(constant(_WIDE, 0.0)), 1.0 / numbers)


def _emit_code(module: ir.Module, name: str, path: Path, held: PackedFormat) -> ir.Function:
    """Write a function that returns the codes, i32, of the nearest integers of 16 rows.

    Written into the kernel, it would be a function without calls that needs more registers than there are, which
    LLVM 20 refuses for Windows on arm64.
    """
    assert held.codes is not None
    kind = ir.FunctionType(_BITS, [_WIDE])
    e = Emitter(internal(ir.Function(module, kind, name)), path)
    (steps,) = e.arguments
    size = e.bitcast(steps.magnitude_bits(), _WIDE)
    code = e.value(constant(_BITS, 0))
    for middle, is_even in code_middles(held):
        is_above = size >= middle if is_even else size > middle
        code = code + e.zext(is_above, _BITS)
    is_negative = (steps < 0.0) & (code > 0)
    return e.end(code | e.zext(is_negative, _BITS) * (len(held.codes) // 2))
