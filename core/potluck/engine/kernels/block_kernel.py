"""What kernels read of a block of a packed format: scales, offsets, and the integers as they are stored."""

from collections.abc import Iterator

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import F16, I8, I16, Value, constant, vector
from potluck.engine.kernels.layout import QUAD, ROWS, VECTOR
from potluck.model.formats import PackedFormat


def emit_scales(e: Emitter, block: Value) -> Value:
    """The scales of the 16 rows, as f32."""
    return _halves(e, block)


def emit_offsets(e: Emitter, held: PackedFormat, block: Value) -> Value | None:
    """The offsets of the 16 rows, as f32; None: the format has none."""
    return None if held.offsets_start is None else _halves(e, e.at(block, held.offsets_start))


def emit_integers(
    e: Emitter, held: PackedFormat, integers: Value, rows: int
) -> Iterator[tuple[int, Value]]:
    """The unsigned integers of some neighbouring rows, four inputs at a time.

    Args:
        e: what the code is written with.
        held: the format.
        integers: where those of the first row begin.
        rows: how many.

    Yields:
        Which four inputs (0 … 7), and a vector of bytes, four of each row. Code that the caller writes for one
        comes before the code that unpacks the next.
    """
    typ = vector(I8, rows * QUAD)
    vectors = (held.block_bytes - held.integers_start) // VECTOR
    for number in range(vectors):
        stored = e.fetch(e.at(integers, VECTOR * number), typ)
        if held.is_nibbles:
            yield number, e.and_(stored, constant(typ, 15))
            yield vectors + number, e.lshr(stored, constant(typ, 4))
        else:
            yield number, stored


def _halves(e: Emitter, address: Value) -> Value:
    """16 numbers of f16, as f32."""
    return e.from_half(e.bitcast(e.fetch(address, vector(I16, ROWS)), vector(F16, ROWS)))
