"""What kernels read of a block of a packed matrix: scales, offsets, and the integers as they are stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from potluck.engine.kernels.layout import QUAD, ROWS, VECTOR
from potluck.engine.kernels.products.tensors import F32_EXPONENT
from potluck.engine.kernels.writing.ir_types import F32, I8, I32, KIND_F16, Operand, vector
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.nibble_table import look_up
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import STEP_BYTES, SUPER_BLOCKS, PackedFormat

_WIDE = vector(F32, ROWS)


@dataclass(frozen=True)
class BlockRow:
    """A row of blocks: 16 rows of the matrix, and before them the steps of their super-blocks, if there are any."""

    held: PackedFormat
    start: Pointer
    groups: Value

    @classmethod
    def of(cls, held: PackedFormat, matrix: Pointer, number: Operand, groups: Value) -> "BlockRow":
        """Return the row of blocks of this number."""
        nbytes = _step_bytes(held, groups) + groups * held.block_bytes
        return cls(held, matrix.skip(number, nbytes), groups)

    @contextmanager
    def each(self) -> Iterator[tuple[Value, "Block"]]:
        """The body runs for each group of inputs and its block."""
        if self.held.has_steps:
            with self.each_super_block() as super_block:
                steps = super_block.steps
                with super_block.each() as (group, block):
                    yield group, Block(block.held, block.start, steps)
        else:
            with self.groups.e.loop(0, self.groups) as group:
                yield group, self.block(group)

    @contextmanager
    def each_super_block(self) -> Iterator["SuperBlock"]:
        """The body runs for each super-block."""
        with self.groups.e.loop(0, self.groups, SUPER_BLOCKS) as first:
            count = (self.groups - first).at_most(SUPER_BLOCKS)
            place = self.start.skip(first, STEP_BYTES // SUPER_BLOCKS)
            yield SuperBlock(self, first, count, place)

    def block(self, group: Value) -> "Block":
        """The block of this group, without its steps."""
        start = self.start.skip(_step_bytes(self.held, self.groups))
        return Block(self.held, start.skip(group, self.held.block_bytes))


def _step_bytes(held: PackedFormat, groups: Value) -> Value:
    """The bytes of the steps before a row of blocks."""
    if not held.has_steps:
        return groups.e.index(0)
    return (groups + (SUPER_BLOCKS - 1)) // SUPER_BLOCKS * STEP_BYTES


@dataclass(frozen=True)
class SuperBlock:
    """Some neighbouring blocks of a row of blocks, whose scales and offsets are multiples of steps."""

    row: BlockRow
    first: Value  # its first group
    count: Value  # of its groups
    place: Pointer  # of its steps

    @property
    def steps(self) -> tuple[Value, Value]:
        """The steps of the scales and of the offsets of the 16 rows, as f32."""
        halves = self.place.of(KIND_F16)
        return halves[Span(0, ROWS)], halves[Span(ROWS, ROWS)]

    @contextmanager
    def each(self) -> Iterator[tuple[Value, "Block"]]:
        """The body runs for each group of inputs and its block."""
        with self.first.e.loop(self.first, self.first + self.count) as group:
            yield group, self.row.block(group)


@dataclass(frozen=True)
class Block:
    """A block of 16 rows x 32 inputs."""

    held: PackedFormat
    start: Pointer
    # of the scales and of the offsets of the 16 rows, as f32, if the format has steps and they are asked for
    steps: tuple[Value, Value] | None = None

    @property
    def scales(self) -> Value:
        """The scales of the 16 rows, as f32."""
        e = self.start.e
        if self.steps is not None:
            return e.uitofp(self.multiples[0], _WIDE) * self.steps[0]
        if self.held.scale_bytes > 1:
            return self.start.of(KIND_F16)[Span(0, ROWS)]
        exponents = e.zext(self.start.of(I8)[Span(0, ROWS)], vector(I32, ROWS))
        return e.bitcast(exponents << F32_EXPONENT, _WIDE)

    @property
    def offsets(self) -> Value | None:
        """The offsets of the 16 rows, as f32; None: the format has none."""
        if self.steps is not None:
            return self.start.e.uitofp(self.multiples[1], _WIDE) * self.steps[1]
        place = self.held.offsets_start
        return None if place is None else self.start.skip(place).of(KIND_F16)[Span(0, ROWS)]

    @property
    def multiples(self) -> tuple[Value, Value]:
        """The scales and the offsets of the 16 rows in steps, as <16 x i8> without signs."""
        assert self.held.has_steps
        assert self.held.offsets_start is not None
        bytes_ = Span(0, ROWS)
        return self.start.of(I8)[bytes_], self.start.skip(self.held.offsets_start).of(I8)[bytes_]

    def integers(self, first: Operand, rows: int) -> Iterator[tuple[int, Value]]:
        """Load the unsigned integers of some neighbouring rows, four inputs at a time.

        Args:
            first: the first of the rows, 0 … 15.
            rows: how many.

        Yields:
            Which four inputs (0 … 7), and a vector of bytes, four of each row: integers, not their codes. Code that the caller writes for
            one comes before the code that unpacks the next.
        """
        held, bytes_ = self.held, Span(0, rows * QUAD)
        start = self.start.skip(held.integers_start).skip(first, QUAD)
        vectors = (held.block_bytes - held.integers_start) // VECTOR
        for number in range(vectors):
            stored = start.skip(VECTOR * number).of(I8)[bytes_]
            if held.is_nibbles:
                yield number, self._decoded(stored & 15)
                yield vectors + number, self._decoded(stored >> 4)
            else:
                yield number, stored

    def _decoded(self, codes: Value) -> Value:
        if self.held.codes is None:
            return codes
        unsigned = tuple(integer + self.held.zero_point for integer in self.held.codes)
        return look_up(codes.e, unsigned, codes)
