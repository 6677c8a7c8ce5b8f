"""Targets of loading: each takes the rows of a tensor of the model and keeps them in its format.

A loader reads a tensor piece by piece and hands the rows on; it does not know whether they are converted
or packed. Bytes that are packed already go straight into `packed`.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from potluck.engine.kernels import Kernels, PackedWeight
from potluck.engine.kernels.layout import ROWS
from potluck.engine.kernels.products.integers import pack_integers
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.errors import BrokenModelError
from potluck.model.formats import PackedFormat
from potluck.model.row_order import PairedRows

# The largest number of f16, which plain weights and the scales of packed ones may have to be held in. Trained weights
# are far below it.
LARGEST_WEIGHT = 65504.0

_AT_ONCE = nullcontext()


class Target(Protocol):
    """Memory for a matrix (rows, width), or for a vector, whose width is 1."""

    rows: int
    width: int
    step: int
    """Rows come in multiples of this number, but at the end."""

    def fill(self, first: int, values: Tensor) -> None:
        """Take (n, width) numbers, or (n,) of a vector, as the rows from `first` on.

        `first` is a multiple of `step`, and so is n, but at the end.
        """
        ...

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        """Take rows from `first` on, as `fill` does, and keep them exactly if possible."""
        ...

    @property
    def format(self) -> PackedFormat | None:
        """The packed format that it keeps its rows in; None: it keeps plain numbers."""
        ...

    @property
    def packed(self) -> PackedWeight | None:
        """The memory for the packed bytes of this tensor; None: it is not packed."""
        ...


class CheckedTarget:
    """Takes the rows of a tensor for another target, and refuses what no trained model has.

    NaN and what is far too large would otherwise show as an answer without sense: packed scales and numbers of
    16 bits cannot hold it. A look at the bits takes 3 to 6 hundredths of the time of a load
    of plain numbers that the system has in memory, and less of others.
    """

    def __init__(self, target: Target, name: str, kernels: Kernels) -> None:
        """`name` is that of the tensor; `kernels` look at its numbers."""
        self._target, self._name, self._kernels = target, name, kernels
        self.rows, self.width, self.step = target.rows, target.width, target.step

    def fill(self, first: int, values: Tensor) -> None:
        self._check(values)
        self._target.fill(first, values)

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        self._check(rows.scales)
        if rows.offsets is not None:
            self._check(rows.offsets)
        self._target.fill_integers(first, rows)

    @property
    def format(self) -> PackedFormat | None:
        return self._target.format

    @property
    def packed(self) -> PackedWeight | None:
        return self._target.packed

    def _check(self, values: Tensor) -> None:
        largest = self._kernels.largest(values)
        if not largest <= LARGEST_WEIGHT:  # nor is NaN
            what = "is not a number" if math.isnan(largest) else f"is {largest:.3g}"
            raise BrokenModelError(
                f"A weight in {self._name} {what}. No trained model has such a weight, and nothing can be"
                " computed with it: the files are damaged or the model was saved badly. Download it"
                " again, or take another version of it.",
                tensor=self._name,
            )


class TensorTarget:
    """A tensor of plain numbers; several threads write to its device in `turns`."""

    step = ROWS

    def __init__(self, tensor: Tensor, turns: AbstractContextManager[object] = _AT_ONCE) -> None:
        self._tensor, self._turns = tensor, turns
        self.rows = len(tensor)
        self.width = tensor.numel() // max(1, self.rows)

    def fill(self, first: int, values: Tensor) -> None:
        with self._turns:
            target = self._tensor[first : first + len(values)]
            target.copy_(values.view(-1, *self._tensor.shape[1:]))

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        self.fill(first, rows.values())

    @property
    def format(self) -> None:
        return None

    @property
    def packed(self) -> None:
        return None


class PackedTarget:
    """Some rows of a packed matrix, which begin and end with a block."""

    step = ROWS

    def __init__(self, weight: PackedWeight, first: int, rows: int, kernels: Kernels) -> None:
        self._weight, self._first, self._kernels = weight, first, kernels
        self.rows, self.width = rows, weight.width

    def fill(self, first: int, values: Tensor) -> None:
        values = values.view(-1, self.width)
        self._kernels.pack_rows(self._weight, self._first + first, values)

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        if not pack_integers(self._weight, self._first + first, rows):
            self.fill(first, rows.values())

    @property
    def format(self) -> PackedFormat:
        return self._weight.format

    @property
    def packed(self) -> PackedWeight:
        return self._weight.rows_of(self._first, self.rows)


class PairedTarget:
    """A target of rows that files have in pairs: it passes them on in halves of heads."""

    packed = None  # the rows have to be put into order first

    def __init__(self, target: Target, pairs: PairedRows) -> None:
        self._target, self._order = target, torch.tensor(pairs.order)
        self.rows, self.width = target.rows, target.width
        self.step = math.lcm(target.step, pairs.head)

    def fill(self, first: int, values: Tensor) -> None:
        self._target.fill(first, self._ordered(values))

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        self._target.fill_integers(first, rows.of_rows(self._ordered))

    @property
    def format(self) -> PackedFormat | None:
        return self._target.format

    def _ordered(self, rows: Tensor) -> Tensor:
        heads = rows.unflatten(0, (-1, len(self._order)))  # (heads, K, …)
        return heads.index_select(1, self._order).flatten(0, 1)


class ScaledTarget:
    """A target of rows that are multiplied by a factor each."""

    packed = None
    format = None  # integers of files have other scales then

    def __init__(self, target: Target, runs: Sequence[tuple[int, float]]) -> None:
        """Take runs of so many rows with a factor."""
        self._target = target
        self.rows, self.width, self.step = target.rows, target.width, target.step
        counts, factors = (torch.tensor(each) for each in zip(*runs, strict=True))
        self._factors = factors.float().repeat_interleave(counts)
        assert len(self._factors) == self.rows

    def fill(self, first: int, values: Tensor) -> None:
        values = values.view(-1, self.width).float()
        self._target.fill(first, values * self._factors[first : first + len(values), None])

    def fill_integers(self, first: int, rows: ScaledIntegers) -> None:
        self.fill(first, rows.values())


def is_whole_blocks(rows: int) -> bool:
    """Whether so many rows can be followed by other rows of the same packed matrix."""
    return rows % ROWS == 0
