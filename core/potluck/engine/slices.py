"""A target that takes a whole tensor and keeps the slice of it that a rank holds.

Files are read whole, since a digest is that of a whole tensor, and is checked before anything is computed. Ranks
of one computer read from the system's memory what the first of them has read from the disk.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from potluck.engine.targets import Target, dequantise
from potluck.model.formats import BLOCK_INPUTS, BLOCK_ROWS, PackedFormat
from potluck.model.quantized import Shape
from potluck.model.shares import TensorSlice


class SlicedTarget:
    """Passes on its slice of the rows that it is given."""

    packed = None  # bytes that are packed already come through `fill_packed`

    def __init__(self, target: Target, part: TensorSlice, whole: Shape) -> None:
        """`target` is memory for the slice `part` of a tensor of the shape `whole`."""
        self._target, self._part = target, part
        self.rows, self.width = whole[0], prod(whole[1:])
        self.step = target.step

    def fill(self, first: int, values: Tensor) -> None:
        if not self._part.ranges:
            if first == 0:
                self._target.fill(0, values.new_zeros(self._target.rows, self._target.width))
            return
        values = values.view(len(values), -1)
        if self._part.axis == "columns":
            self._target.fill(first, self._columns(values))
            return
        for place, rows in self._own_rows(first, len(values)):
            self._target.fill(place, values[rows])

    def fill_integers(
        self, first: int, integers: Tensor, scales: Tensor, offsets: Tensor | None = None
    ) -> None:
        ranges = self._part.ranges
        if self._part.axis == "columns":
            if any(start % BLOCK_INPUTS for start, _ in ranges):
                self.fill(first, dequantise(integers, scales, offsets))
                return
            groups = [(start // BLOCK_INPUTS, -(-stop // BLOCK_INPUTS)) for start, stop in ranges]
            scales = _joined_columns(scales, groups)
            offsets = None if offsets is None else _joined_columns(offsets, groups)
            self._target.fill_integers(first, self._columns(integers), scales, offsets)
            return
        for place, rows in self._own_rows(first, len(integers)):
            some = None if offsets is None else offsets[rows]
            self._target.fill_integers(place, integers[rows], scales[rows], some)

    def fill_packed(self, first: int, data: Tensor) -> None:
        """Take packed bytes of rows, which begin with a block; the slice is of whole blocks too."""
        packed = self._target.packed
        assert packed is not None
        block = packed.format.block_bytes
        across = -(-self.width // BLOCK_INPUTS)
        blocks = data.view(-1, across, block)  # (blocks of rows, blocks of inputs, bytes)
        own = packed.data.view(-1, -(-packed.width // BLOCK_INPUTS), block)
        if self._part.axis == "columns":
            place = 0
            for start, stop in self._part.ranges:
                some = blocks[:, start // BLOCK_INPUTS : -(-stop // BLOCK_INPUTS)]
                own[first // BLOCK_ROWS :][: len(blocks), place : place + some.shape[1]] = some
                place += some.shape[1]
            return
        for place, rows in self._own_rows(first, len(blocks) * BLOCK_ROWS):
            some = blocks[rows.start // BLOCK_ROWS : -(-rows.stop // BLOCK_ROWS)]
            own[place // BLOCK_ROWS :][: len(some)] = some

    @property
    def format(self) -> PackedFormat | None:
        return self._target.format

    def _columns(self, values: Tensor) -> Tensor:
        return _joined_columns(values, self._part.ranges)

    def _own_rows(self, first: int, count: int) -> list[tuple[int, slice]]:
        """Of rows that begin with `first`: where they go to, and which."""
        found: list[tuple[int, slice]] = []
        place = 0
        for start, stop in self._part.ranges:
            begin, end = max(start, first), min(stop, first + count)
            if begin < end:
                found.append((place + begin - start, slice(begin - first, end - first)))
            place += stop - start
        return found


def _joined_columns(values: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    return torch.cat([values[:, start:stop] for start, stop in ranges], 1)
