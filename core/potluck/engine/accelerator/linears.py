"""Packed matrices on a GPU.

A matrix is first filled as packed bytes in RAM. Then it is placed: some rows at a time are copied to the
device in the order that its product reads, and the packed bytes are freed. So only the matrix that is
being placed exists twice. `Int4Linear` multiplies with torch's int4 product; `BlockLinear` uses plain
operators that every device has.

`nvidia/linear.py` has a third way. The tests run these two on the CPU.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.accelerator.int4pack import Int4Form, planes
from potluck.engine.kernels import PackedWeight
from potluck.engine.kernels.layout import GROUP, ROWS, blocks_of, groups_of
from potluck.engine.kernels.products.tensors import (
    UnpackedRows,
    pack_nibbles,
    signed_integers,
    unpack_nibbles,
)
from potluck.engine.layers.linear import Linear

_MANY = 32  # from so many rows of input on, unpacking the weights once for all rows pays
# unpacked at a time when weights are placed: 8 MB of integers at a width of 8192
_ROWS_AT_ONCE = 1024

MakeLinear = Callable[[PackedWeight, Tensor | None], "PlacedLinear"]
"""Make a matrix from packed bytes in RAM, which may be filled later, and a bias on the device."""


class PlacedLinear(Linear):
    """A packed matrix on a device. Call `place` when the packed bytes are filled, then multiply."""

    at_once = (
        1 << 22
    )  # weights unpacked at a time: 8 MB in 16 bits, which fit into the cache of a GPU

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows, self.width, self.format = weight.rows, weight.width, weight.format
        self.bias = bias
        self._source: PackedWeight | None = weight
        self._dtype, self._device = dtype, device
        self._padding = groups_of(weight.width) * GROUP - weight.width

    @torch.inference_mode()
    def place(self) -> None:
        """Copy the filled matrix to the device, and free the packed bytes."""
        assert self._source is not None, "placed once"
        self._move(self._source)
        self._source = None

    def __call__(self, x: Tensor) -> Tensor:
        assert self._source is None, "placed before it is used"
        if self._padding:
            x = F.pad(x, (0, self._padding))
        y = self._multiply(x)
        return y if self.bias is None else y.add_(self.bias)

    def _multiply_by_blocks(self, x: Tensor) -> Tensor:
        """Dequantise and multiply some rows of weights at a time, in the dtype of x."""
        y = x.new_empty((len(x), self.rows))
        at_once = max(ROWS, self.at_once // x.shape[1] // ROWS * ROWS)
        for first in range(0, self.rows, at_once):
            last = min(first + at_once, self.rows)
            some = self.dequantise(first, last)
            if y.is_cuda:
                torch.mm(x, some.t(), out=y[:, first:last])
            else:  # before macOS 15, MPS writes into no part of a tensor (pytorch issue 104832)
                y[:, first:last] = F.linear(x, some)
        return y

    @abstractmethod
    def dequantise(self, first: int, last: int) -> Tensor:
        """The numbers of the rows from `first`, a multiple of 16, to `last`: (n, padded width)."""

    @abstractmethod
    def _move(self, weight: PackedWeight) -> None:
        """Store the filled matrix on the device."""

    @abstractmethod
    def _multiply(self, x: Tensor) -> Tensor:
        """(T, padded width) → (T, rows), new memory."""


class UnpackedLinear(PlacedLinear):
    """A matrix that is taken apart for the device, some rows at a time."""

    def _move(self, weight: PackedWeight) -> None:
        for first in range(0, weight.rows, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, weight.rows)
            self._place(first, weight.unpack(first, last, self._device))

    @abstractmethod
    def _place(self, first: int, rows: UnpackedRows) -> None:
        """Store these rows, which are whole blocks on the device, at row `first` of the matrix."""


class BlockLinear(UnpackedLinear):
    """A matrix whose weights stay packed; each product unpacks them block by block.

    A product moves about nine bytes of memory for each weight; with 16-bit weights it moves two.
    """

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(weight, bias, dtype=dtype, device=device)
        held, groups = weight.format, groups_of(weight.width)
        rows = blocks_of(weight.rows) * ROWS
        # Inputs 0 … 15 of a group are in the low nibbles, 16 … 31 in the high ones.
        shape = (rows, groups, GROUP * held.integer_bits // 8)
        self._integers = torch.empty(shape, dtype=torch.uint8, device=device)
        self._scales = torch.empty((rows, groups), dtype=dtype, device=device)
        self._offsets = torch.empty_like(self._scales) if held.has_offsets else None

    def dequantise(self, first: int, last: int) -> Tensor:
        integers = self._integers[first:last]
        if self.format.is_nibbles:
            integers = unpack_nibbles(integers)
        # Made signed as bytes, before they are widened: this moves the least memory.
        signed = signed_integers(self.format, integers)
        values = signed * self._scales[first:last, :, None]
        if self._offsets is not None:
            values -= self._offsets[first:last, :, None]
        return values.flatten(1)

    def _place(self, first: int, rows: UnpackedRows) -> None:
        where = slice(first, first + len(rows.integers))
        nibbles = self.format.is_nibbles
        self._integers[where] = pack_nibbles(rows.integers) if nibbles else rows.integers
        self._scales[where] = rows.scales
        if self._offsets is not None and rows.offsets is not None:
            self._offsets[where] = rows.offsets

    def _multiply(self, x: Tensor) -> Tensor:
        return self._multiply_by_blocks(x)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        parts = (self._integers, self._scales, self._offsets)
        return tuple(part for part in parts if part is not None)


class Int4Linear(UnpackedLinear):
    """A matrix in the order of torch's int4 product; with 8 bits it is two matrices of 4 bits."""

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
        form: Int4Form,
        many_by_operator: bool,
    ) -> None:
        super().__init__(weight, bias, dtype=dtype, device=device)
        self._form, self._many_by_operator = form, many_by_operator
        self._planes = weight.format.integer_bits // 4
        rows, groups = blocks_of(weight.rows) * ROWS, self._planes * groups_of(weight.width)
        self._packed = form.empty(rows, groups * GROUP, device)
        self._scales = torch.empty((groups, rows, 2), dtype=dtype, device=device)

    def dequantise(self, first: int, last: int) -> Tensor:
        end = blocks_of(last) * ROWS
        integers = self._form.unpack(self._form.rows_of(self._packed, first, end))
        scales, zeros = self._scales[:, first:end].permute(2, 1, 0)[..., None].contiguous()
        signed = integers.view(end - first, -1, GROUP).sub_(8).view(torch.int8)
        values = torch.addcmul(zeros, signed.to(self._dtype), scales)  # (n, P·G, 32)
        values = values.view(end - first, self._planes, -1)
        return values.sum(1)[: last - first]

    def _place(self, first: int, rows: UnpackedRows) -> None:
        integers, scales, zeros = planes(rows)
        last = first + len(integers)
        self._form.rows_of(self._packed, first, last).copy_(self._form.convert(integers))
        target = self._scales[:, first:last]  # (P·G, n, 2)
        target[..., 0] = scales.t()
        target[..., 1] = zeros.t()

    def _multiply(self, x: Tensor) -> Tensor:
        if len(x) >= _MANY and not self._many_by_operator:
            return self._multiply_by_blocks(x)
        if self._planes > 1:
            x = x.repeat(1, self._planes)
        y = self._form.multiply(x.contiguous(), self._packed, self._scales)
        return y if y.shape[1] == self.rows else y[:, : self.rows].contiguous()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return self._packed, self._scales
