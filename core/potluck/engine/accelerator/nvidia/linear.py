"""Packed matrices on an NVIDIA GPU, multiplied as they lie in files and in RAM."""

import torch
from torch import Tensor

from potluck.engine.accelerator.linears import PlacedLinear
from potluck.engine.accelerator.nvidia.operators import NvidiaOperators
from potluck.engine.kernels import PackedWeight

_FEW = (
    8  # rows of input; with more, weights are unpacked once for all, and multiplied by tensor cores
)


class NvidiaLinear(PlacedLinear):
    """A matrix of which the GPU has the packed bytes. For a few tokens, inputs are quantised to 8 bits, as on a CPU."""

    at_once = (
        1 << 24
    )  # weights unpacked at a time: products of fewer rows leave much of a large GPU idle

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None, *, operators: NvidiaOperators
    ) -> None:
        super().__init__(weight, bias, dtype=operators.dtype, device=operators.device)
        self.operators = operators
        self._data = torch.empty(weight.nbytes, dtype=torch.uint8, device=operators.device)

    def _move(self, weight: PackedWeight) -> None:
        self._data.copy_(weight.data)

    def __call__(self, x: Tensor) -> Tensor:
        assert self._source is None, "placed before it is used"
        if len(x) <= _FEW:
            return self.operators.multiply(
                self._data, self.format, self.rows, x.contiguous(), self.bias
            )
        return super().__call__(x)

    def dequantise(self, first: int, last: int) -> Tensor:
        return self.operators.dequantise(self._data, self.format, self.width, first, last)

    def _multiply(self, x: Tensor) -> Tensor:
        return self._multiply_by_blocks(x)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return (self._data,)

    @property
    def address(self) -> int:
        """Where the packed bytes are on the GPU."""
        return self._data.data_ptr()
