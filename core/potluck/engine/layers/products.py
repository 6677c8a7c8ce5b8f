"""x Wᵀ + b in plain numbers, by the way that is the fastest for this processor and this many rows.

Which way is taken depends on nothing but the processor, the dtype and the number of rows. So a computer
takes the same one for every stage and after every start, and the same steps give the same bits. Measured on
one core with AVX-512, AMX for bf16, and 16.8 million weights, in ms:

    rows                  1     2     4     8    16    32   128
    bf16, torch         2.3   2.3   2.4   2.5   2.4   2.9   6.4
    bf16, kernels       1.3   1.5   1.8   3.3   6.6    13    54
    f16, torch          4.9   3.8   3.8   5.0   7.7    13    29
    f16, kernels        1.6   1.7   1.8   3.5    10    14    55
    either, widened     6.8   6.8   9.5    13    14    17    37

On a processor without 16-bit arithmetic (AVX2), 128 rows take torch 404 ms, and 127 if the weights are
converted to f32 block by block.

In f32 kernels compute all rows, so that each has the same bits alone and among others.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import Kernels

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(T, in), (out, in), (out,) or None → (T, out)."""

_FEW = 4  # rows for which kernels are the fastest on every processor
_FEW_WIDENED = 16  # and where the other way is to convert the weights to f32
_BLOCK_ROWS = 512  # rows of weights converted at a time: 4 MB at a hidden size of 2048


class Products:
    """The ways that were chosen for a few rows of input, one to `most`, and for more."""

    __slots__ = ("_few", "_many", "_most")

    def __init__(self, few: Product = F.linear, many: Product = F.linear, *, most: int = 1) -> None:
        self._few, self._many, self._most = few, many, most

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        multiply = self._few if x.shape[0] <= self._most else self._many
        return multiply(x, weight, bias)


def choose_products(
    dtype: torch.dtype, device: torch.device, kernels: Kernels | None = None
) -> Products:
    """Choose the ways for weights and inputs of this dtype.

    Args:
        dtype: of weights and inputs.
        device: the device that computes.
        kernels: of the CPU; None: torch computes.
    """
    if device.type != "cpu":
        return Products()
    if dtype == torch.float32:
        return Products() if kernels is None else Products(many=kernels.multiply_plain, most=0)
    if kernels is None or kernels.has_arithmetic(dtype):
        few = F.linear if kernels is None else kernels.multiply_plain
        return Products(few, F.linear, most=_FEW)
    return Products(kernels.multiply_plain, linear_widened, most=_FEW_WIDENED)


def linear_widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in f32. Weights are converted block by block, so that no second copy exists."""
    y = x.new_empty((x.shape[0], weight.shape[0]))
    wide = x.float()
    for start in range(0, weight.shape[0], _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        offsets = None if bias is None else bias[rows].float()
        y[:, rows] = F.linear(wide, weight[rows].float(), offsets)
    return y
