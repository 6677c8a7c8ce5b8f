"""What kernels read of a block of a packed matrix: scales, offsets, and the integers as they are stored."""

from collections.abc import Iterator
from dataclasses import dataclass

from potluck.engine.kernels.ir_types import F32, I8, I32, KIND_F16, Operand, vector
from potluck.engine.kernels.layout import QUAD, ROWS, VECTOR
from potluck.engine.kernels.memory import Pointer, Span
from potluck.engine.kernels.nibble_table import look_up
from potluck.engine.kernels.tensors import F32_EXPONENT
from potluck.engine.kernels.values import Value
from potluck.model.formats import PackedFormat


@dataclass(frozen=True)
class Block:
    """A block of 16 rows x 32 inputs."""

    held: PackedFormat
    start: Pointer

    @property
    def scales(self) -> Value:
        """The scales of the 16 rows, as f32."""
        if self.held.scale_bytes > 1:
            return self.start.of(KIND_F16)[Span(0, ROWS)]
        e = self.start.e
        exponents = e.zext(self.start.of(I8)[Span(0, ROWS)], vector(I32, ROWS))
        return e.bitcast(exponents << F32_EXPONENT, vector(F32, ROWS))

    @property
    def offsets(self) -> Value | None:
        """The offsets of the 16 rows, as f32; None: the format has none."""
        place = self.held.offsets_start
        return None if place is None else self.start.skip(place).of(KIND_F16)[Span(0, ROWS)]

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
