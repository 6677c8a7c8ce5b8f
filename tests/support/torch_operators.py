"""What our kernels for NVIDIA GPUs compute, by torch's operators, on a CPU: for the code around them."""

import ctypes

import torch
from torch import Tensor

from potluck.engine.accelerator.nvidia.operators import NvidiaOperators
from potluck.engine.gates import gate
from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.layers.norms import torch_norm
from potluck.engine.layers.rotary import rotate
from potluck.model.formats import PackedFormat


class TorchOperators(NvidiaOperators):
    """As `NvidiaOperators`; addresses are those of this process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.device, self.dtype = torch.device("cpu"), dtype

    def multiply(
        self, weight: Tensor, held: PackedFormat, rows: int, x: Tensor, bias: Tensor | None
    ) -> Tensor:
        assert x.is_contiguous()
        packed = PackedWeight(weight, rows, x.shape[1], held)
        y = ReferenceKernels().quantise(x).dequantise() @ packed.dequantise().t()
        return (y if bias is None else y + bias.float()).to(self.dtype)

    def multiply_chosen(
        self,
        matrices: Tensor,
        biases: Tensor | None,
        held: PackedFormat,
        rows: int,
        x: Tensor,
        chosen: Tensor,
    ) -> Tensor:
        each = len(chosen) // len(x)
        outputs: list[Tensor] = []
        for at, which in enumerate(chosen.tolist()):
            weight = _at(matrices[which], held.nbytes(rows, x.shape[1]), torch.uint8)
            bias = (
                None
                if biases is None
                else _at(biases[which], rows * self.dtype.itemsize, self.dtype)
            )
            token = x[at // each : at // each + 1]
            outputs.append(self.multiply(weight, held, rows, token, bias))
        return torch.cat(outputs)

    def dequantise(
        self, weight: Tensor, held: PackedFormat, width: int, first: int, last: int
    ) -> Tensor:
        rows = weight.numel() // held.nbytes(16, width) * 16
        unpacked = PackedWeight(weight, rows, width, held).unpack(first, last)
        return unpacked.dequantise().to(self.dtype)[: last - first]

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return torch_norm(x, x.shape[-1:], weight, eps)

    def norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        x.copy_(torch_norm(x.float(), x.shape[-1:], None, eps) * weight)

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        rotate(x, cosines, sines)

    def gate(self, x: Tensor, *, is_gelu: bool) -> Tensor:
        return gate(x.float(), "gelu_pytorch_tanh" if is_gelu else "silu").to(self.dtype)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        scores = q.float() @ keys.float().transpose(1, 2) * scale
        powers = (scores if mask is None else scores + mask.float()).softmax(-1)
        return (powers @ values.float()).flatten().to(self.dtype)


def _at(address: Tensor, nbytes: int, dtype: torch.dtype) -> Tensor:
    octets = bytearray(ctypes.string_at(int(address), nbytes))
    return torch.frombuffer(octets, dtype=dtype)
