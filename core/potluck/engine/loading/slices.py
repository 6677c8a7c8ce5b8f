"""A target that takes a whole tensor, or more of it than a rank holds, and keeps the slice that the rank holds.

The model's own files are read whole, since a digest is that of a whole tensor, and is checked before anything is
computed. Ranks of one computer read from the system's memory what the first of them has read from the disk. What a rank
was sent is its slice alone (`model/stored_slices.py`).
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from potluck.engine.kernels import PackedWeight
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.targets import Target
from potluck.model.formats import BLOCK_INPUTS, BLOCK_ROWS, SUPER_BLOCKS, PackedFormat
from potluck.model.quantized import Shape
from potluck.model.shares import TensorSlice

SUPER_INPUTS = SUPER_BLOCKS * BLOCK_INPUTS


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

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        if self._part.axis == "columns":
            if any(start % BLOCK_INPUTS for start, _ in self._part.ranges):
                self.fill(first, rows.values())
            else:
                self._target.fill_integers(first, self._columns_of(rows))
            return
        for place, own in self._own_rows(first, len(rows)):
            self._target.fill_integers(place, rows.of_rows(lambda tensor, own=own: tensor[own]))

    def fill_packed(self, first: int, data: Tensor) -> None:
        """Take packed bytes of rows, which begin with a block; the slice is of whole blocks too.

        If it is not of whole super-blocks where these share steps, its values are packed anew.
        """
        own = self._target.packed
        assert own is not None
        held = own.format
        count = len(data) // held.nbytes(BLOCK_ROWS, self.width)  # blocks of rows
        rows = min(count * BLOCK_ROWS, self.rows - first)
        given = PackedWeight(data, rows, self.width, held)
        if self._part.axis == "rows":
            for place, some in self._own_rows(first, rows):
                source = slice(some.start // BLOCK_ROWS, -(-some.stop // BLOCK_ROWS))
                target = slice(
                    place // BLOCK_ROWS, -(-(place + some.stop - some.start) // BLOCK_ROWS)
                )
                own.blocks[target], own.steps[target] = given.blocks[source], given.steps[source]
            return
        if held.has_steps and not self._has_super_blocks:
            self._target.fill(first, self._columns(given.dequantise()))
            return
        target = slice(first // BLOCK_ROWS, first // BLOCK_ROWS + count)
        own.blocks[target] = _joined_columns(given.blocks, self._cut(BLOCK_INPUTS))
        if held.has_steps:
            own.steps[target] = _joined_columns(given.steps, self._cut(SUPER_INPUTS))

    @property
    def format(self) -> PackedFormat | None:
        return self._target.format

    @property
    def _has_super_blocks(self) -> bool:
        """Whether a slice of columns is of whole super-blocks."""
        ends = (end for both in self._part.ranges for end in both)
        return all(end % SUPER_INPUTS == 0 for end in ends if end != self.width)

    def _cut(self, unit: int) -> list[tuple[int, int]]:
        """The ranges in units of so many columns."""
        return [(start // unit, -(-stop // unit)) for start, stop in self._part.ranges]

    def _columns(self, values: Tensor) -> Tensor:
        return _joined_columns(values, self._part.ranges)

    def _columns_of(self, rows: ScaledIntegers) -> ScaledIntegers:
        """The slice of columns, which begins and ends with a group."""
        groups, offsets, steps = self._cut(BLOCK_INPUTS), rows.offsets, rows.steps
        return ScaledIntegers(
            self._columns(rows.integers),
            _joined_columns(rows.scales, groups),
            None if offsets is None else _joined_columns(offsets, groups),
            None
            if steps is None or not self._has_super_blocks
            else _joined_columns(steps, self._cut(SUPER_INPUTS)),
        )

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
