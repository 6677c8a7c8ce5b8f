"""Where a tensor of the model goes when it is loaded: rows in, the form that is computed with kept.

A loader reads a tensor piece by piece and hands the rows on; whether they are converted or packed, it
does not know. Packed bytes that come as they are go straight into `packed`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from potluck.engine.kernels import Kernels, PackedWeight
from potluck.engine.kernels.integers import pack_integers
from potluck.engine.kernels.layout import GROUP, ROWS, groups_of, has_offsets
from potluck.model.schemes import packed_bytes

_AT_ONCE = nullcontext()


class Target(Protocol):
    """Memory for a matrix (rows, width), or for a vector, whose width is 1."""

    rows: int
    width: int

    def fill(self, first: int, values: Tensor) -> None:
        """Take (n, width) numbers, or (n,) of a vector, as the rows from `first` on.

        `first` is a multiple of 16, and so is n, but at the end.
        """
        ...

    def fill_integers(
        self, first: int, integers: Tensor, scales: Tensor, offsets: Tensor | None = None
    ) -> None:
        """Take (n, width) i8 and (n, groups of 32 inputs) f32, worth their product; exactly, if possible.

        With offsets, (n, groups) f32, worth so much less; with those integers are 0 to 15.
        """
        ...

    @property
    def has_offsets(self) -> bool:
        """Whether it holds integers with offsets as they are; else they are better told without any."""
        ...

    @property
    def packed(self) -> PackedWeight | None:
        """Where the packed bytes of this tensor go; None: it is not packed."""
        ...


class TensorTarget:
    """Numbers in the dtype and on the device of a tensor, which is written in `turns`."""

    def __init__(self, tensor: Tensor, turns: AbstractContextManager[object] = _AT_ONCE) -> None:
        self._tensor, self._turns = tensor, turns
        self.rows = len(tensor)
        self.width = tensor.numel() // max(1, self.rows)

    def fill(self, first: int, values: Tensor) -> None:
        with self._turns:
            target = self._tensor[first : first + len(values)]
            target.copy_(values.view(-1, *self._tensor.shape[1:]))

    def fill_integers(
        self, first: int, integers: Tensor, scales: Tensor, offsets: Tensor | None = None
    ) -> None:
        self.fill(first, worth(integers, scales, offsets))

    @property
    def has_offsets(self) -> bool:
        return False

    @property
    def packed(self) -> PackedWeight | None:
        return None


class PackedTarget:
    """Some rows of a packed matrix, which begin and end with a block."""

    def __init__(self, weight: PackedWeight, first: int, rows: int, kernels: Kernels) -> None:
        self._weight, self._first, self._kernels = weight, first, kernels
        self.rows, self.width = rows, weight.width

    def fill(self, first: int, values: Tensor) -> None:
        values = values.view(-1, self.width)
        self._kernels.pack_rows(self._weight, self._first + first, values)

    def fill_integers(
        self, first: int, integers: Tensor, scales: Tensor, offsets: Tensor | None = None
    ) -> None:
        if not pack_integers(self._weight, self._first + first, integers, scales, offsets):
            self.fill(first, worth(integers, scales, offsets))

    @property
    def has_offsets(self) -> bool:
        return has_offsets(self._weight.bits)

    @property
    def packed(self) -> PackedWeight:
        """These rows alone, in the same memory."""
        weight = self._weight
        start = packed_bytes(self._first, weight.width, weight.bits)
        nbytes = packed_bytes(self.rows, weight.width, weight.bits)
        data = weight.data[start : start + nbytes]
        return PackedWeight(data, self.rows, weight.width, weight.bits)


def is_whole_blocks(rows: int) -> bool:
    """Whether so many rows can be followed by other rows of the same packed matrix."""
    return rows % ROWS == 0


def worth(integers: Tensor, scales: Tensor, offsets: Tensor | None = None) -> Tensor:
    """(n, width) and twice (n, groups) → (n, width), f32."""
    rows, width = integers.shape
    padded = torch.nn.functional.pad(integers, (0, groups_of(width) * GROUP - width))
    values = padded.view(rows, -1, GROUP).float() * scales[..., None]
    if offsets is not None:
        values -= offsets[..., None]
    return values.view(rows, -1)[:, :width]
