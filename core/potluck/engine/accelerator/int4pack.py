"""torch's int4 product, and the packed formats in its form.

Each device has its own conversion and product (aten/src/ATen/native: cuda/int4mm.cu,
mps/operations/Quantized.mm, cpu/int4mm_kernel.cpp); all compute the same:

    value = (q - 8) x scale + zero         q of 0 … 15, scale and zero one per row and 32 inputs

So `int4` is q with a zero of 0, `int4-offset` and `int4-super` q with a zero of 8 x scale - offset, and `int8` exactly the sum
of two such matrices:

    s (q8 - 128) = 16s (high - 8) + [s (low - 8) + 8s]       q8 = 16 high + low

The two matrices stand side by side, twice as wide, and are multiplied with the input repeated. This
keeps one scale for each 32 inputs; `_weight_int8pack_mm` has only one for each row. Measured with
2048 to 8192 inputs, the errors of products, as multiples of the error of 8 bits, are: with one
scale per row 1.8 to 2.0 on Gaussian weights, 2.7 to 3.6 on weights with the tails of Student's t of
5 degrees of freedom, 4.2 to 6.3 of 3 degrees; with two matrices of 4 bits, scales and sums in bf16,
1.03 to 1.09.

The product needs widths that are multiples of 32 (inner_k_tiles x 16; a block is always whole here)
and rows that are multiples of 8 (a block has 16). On CUDA it needs bf16 and compute capability 8.0;
other devices take any float. A weight takes 0.625 bytes with 4 bits and 1.25 with 8; the packed
bytes take 0.5625 (`int4`), 0.578 (`int4-super`), 0.625 (`int4-offset`) and 1.0625 (`int8`).

The form of CUDA has run on an H100; that of MPS has not run on real hardware. The tests run a form of the CPU.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from potluck.engine.kernels.layout import GROUP
from potluck.engine.kernels.products.tensors import UnpackedRows

_LANES = 32  # of a warp
_CUDA_TILE = 8  # rows
_MIDDLE = 8  # the product subtracts it from each integer


class Int4Form(ABC):
    """The order in which a device needs the integers, and its product with them."""

    def empty(self, rows: int, width: int, device: torch.device) -> Tensor:
        """Memory for a matrix; `rows_of` are views of it."""
        tiles = inner_k_tiles(width)
        shape = (rows // _CUDA_TILE, width // (16 * tiles), _LANES, tiles // 2)
        return torch.empty(shape, dtype=torch.int32, device=device)

    def rows_of(self, packed: Tensor, first: int, last: int) -> Tensor:
        """The part of the memory that holds these rows, which begin and end with a block of 16."""
        return packed[first // _CUDA_TILE : last // _CUDA_TILE]

    def convert(self, integers: Tensor) -> Tensor:
        """(n, width) uint8 of 0 … 15 → what `rows_of` such rows holds."""
        # The even input goes into the high half of a byte, as both devices need it.
        halves = integers.view(len(integers), -1, 2)
        joined = halves[..., 0] << 4 | halves[..., 1]
        return torch.ops.aten._convert_weight_to_int4pack(
            joined.contiguous(), inner_k_tiles(integers.shape[1])
        )

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        """(T, width), and (G, rows, 2) → (T, rows)."""
        return torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales_and_zeros)

    @abstractmethod
    def unpack(self, packed: Tensor) -> Tensor:
        """The integers of some rows, (n, width) uint8."""


class CudaForm(Int4Form):
    """The order in which a tensor core's m16n8k16 product takes its second matrix."""

    def unpack(self, packed: Tensor) -> Tensor:
        # A word has 8 integers: of a row's 32 inputs those at 8h + 2c (h = 0 … 3), then at 8h + 2c + 1.
        n, k, _, j = packed.shape
        # Tile, row, c, pair of k tiles, byte; then the lower half of a byte before the upper one.
        halves = packed.view(torch.uint8).view(n, k, 8, 4, j, 4)
        nibbles = torch.stack((halves & 15, halves >> 4), -1)
        words = nibbles.view(n, k, 8, 4, j, 2, 4)  # (…, row, c, j, odd, h)
        return words.permute(0, 2, 1, 4, 6, 3, 5).reshape(n * 8, -1)


class MpsForm(Int4Form):
    """Row after row, with the even input in the low half of a byte."""

    def unpack(self, packed: Tensor) -> Tensor:
        tiles, outer, _, inner = packed.shape
        width = outer * 16 * inner * 2
        halves = packed.view(torch.uint8).view(tiles * _CUDA_TILE, width // 2)
        return torch.stack((halves & 15, halves >> 4), -1).view(-1, width)


def int4_form(device: torch.device) -> Int4Form | None:
    """The form of a kind of device; None: torch has no product for it."""
    forms: dict[str, type[Int4Form]] = {"cuda": CudaForm, "mps": MpsForm}
    form = forms.get(device.type)
    return None if form is None else form()


def inner_k_tiles(width: int) -> int:
    """The most tiles of 16 inputs that divide the width: side by side, reads are longer."""
    return next(tiles for tiles in (8, 4, 2) if width % (16 * tiles) == 0)


def planes(rows: UnpackedRows) -> tuple[Tensor, Tensor, Tensor]:
    """The 4-bit matrices, side by side, whose sum has the values of these rows.

    Returns:
        Integers (n, P·G·32) uint8, scales and zeros (n, P·G), f32; P is 1 with 4 bits and 2 with 8.
    """
    integers, scales = rows.integers, rows.scales.float()
    n = len(integers)
    if rows.format.is_nibbles:
        zeros = torch.zeros_like(scales)
        if rows.offsets is not None:
            zeros = scales * _MIDDLE - rows.offsets.float()
        return integers.reshape(n, -1), scales, zeros
    halves = torch.cat((integers >> 4, integers & 15), 1)  # (n, 2G, 32)
    zeros = torch.cat((torch.zeros_like(scales), scales * _MIDDLE), 1)
    return halves.reshape(n, -1), torch.cat((scales * 16, scales), 1), zeros
