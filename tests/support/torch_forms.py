"""Forms of the int4 product that run here: that of a CPU, and others in plain torch with rows in the MPS format."""

import torch
from torch import Tensor

from potluck.engine.accelerator.int4pack import Int4Form, MpsForm
from potluck.engine.kernels.layout import GROUP


class CpuForm(Int4Form):
    """Blocks of rows as wide as the processor's vectors. The node does not use it: our CPU kernels are better."""

    def empty(self, rows: int, width: int, device: torch.device) -> Tensor:
        return torch.empty((rows, width // 2), dtype=torch.uint8, device=device)

    def rows_of(self, packed: Tensor, first: int, last: int) -> Tensor:
        return packed[first:last]

    def convert(self, integers: Tensor) -> Tensor:
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers.int(), 2)

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales_and_zeros)

    def unpack(self, packed: Tensor) -> Tensor:
        raise NotImplementedError("which order it is depends on the processor")


class TorchForm(MpsForm):
    """Converts and multiplies with ordinary operators, and counts products."""

    def __init__(self) -> None:
        self.products = 0

    def convert(self, integers: Tensor) -> Tensor:
        packed = self.empty(*integers.shape, device=integers.device)
        rows = packed.view(torch.uint8).view(len(integers), -1)
        rows[:] = integers[:, ::2] | integers[:, 1::2] << 4
        return packed

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        self.products += 1
        spread = scales_and_zeros.float().repeat_interleave(32, 0)  # (width, rows, 2)
        weight = (self.unpack(packed).float() - 8) * spread[..., 0].t() + spread[..., 1].t()
        return (x.float() @ weight.t()).to(x.dtype)


class SwappedForm(TorchForm):
    """Its product takes the halves of a byte in the wrong order."""

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        halves = packed.view(torch.uint8)
        return super().multiply(x, (halves << 4 | halves >> 4).view(torch.int32), scales_and_zeros)


class OffsetlessForm(TorchForm):
    """Its product takes no notice of zeros, which all formats but `int4` need."""

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        scales = scales_and_zeros.clone()
        scales[..., 1] = 0
        return super().multiply(x, packed, scales)


class StrangeForm(TorchForm):
    """Its product is right, but `unpack` returns another order."""

    def unpack(self, packed: Tensor) -> Tensor:
        return super().unpack(packed).flip(1)

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        form = TorchForm()
        return form.multiply(x, packed, scales_and_zeros)
