"""Matrices and embeddings, in plain numbers or in packed formats."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import Kernels, PackedWeight, QuantisedInput
from potluck.engine.layers.products import Product


class Linear(ABC):
    """x Wᵀ + b."""

    __slots__ = ("bias",)

    bias: Tensor | None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(T, in) → (T, out)."""

    @property
    @abstractmethod
    def memory(self) -> tuple[Tensor, ...]:
        """The tensors of W that the product of one token reads."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights and bias."""
        bias = 0 if self.bias is None else self.bias.nbytes
        return bias + sum(part.nbytes for part in self.memory)


class FloatLinear(Linear):
    """A matrix of plain numbers, in the compute dtype."""

    __slots__ = ("_product", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, product: Product) -> None:
        self.weight = weight  # (out, in)
        self.bias = bias
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.weight, self.bias)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return (self.weight,)


class PackedLinear(Linear):
    """A packed matrix on a CPU; inputs are quantised to 8 bits, sums are f32."""

    __slots__ = ("kernels", "weight")

    def __init__(self, weight: PackedWeight, bias: Tensor | None, kernels: Kernels) -> None:
        self.weight, self.bias, self.kernels = weight, bias, kernels

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(self.kernels.quantise(x))

    def multiply(self, x: QuantisedInput, out: Tensor | None = None) -> Tensor:
        """Multiply with an input that is quantised already, into `out` where it is given."""
        return self.kernels.multiply(self.weight, x, out=out, addend=self.bias)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return (self.weight.data,)


class JoinedLinear(Linear):
    """Several matrices with the same input. Their outputs are concatenated.

    Packed matrices use it if they cannot be one matrix, since a block of 16 rows would belong to
    two.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.bias, self._parts = None, tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], -1)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return tuple(memory for part in self._parts for memory in part.memory)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


class Embedding(ABC):
    """Embedding lookup: a row of a matrix for each token."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, ids: Tensor) -> Tensor:
        """Token ids (T,) on the CPU → (T, D) on the device that computes the layers."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its weights and bias."""


class FloatEmbedding(Embedding):
    """Rows of plain numbers, in the compute dtype."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight  # (V, D)

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids.to(self.weight.device), self.weight)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class PackedEmbedding(Embedding):
    """Packed rows, dequantised when they are looked up. They are in RAM, whatever the device is."""

    __slots__ = ("_device", "_dtype", "weight")

    def __init__(self, weight: PackedWeight, dtype: torch.dtype, device: torch.device) -> None:
        self.weight, self._dtype, self._device = weight, dtype, device

    def __call__(self, ids: Tensor) -> Tensor:
        return self.weight.look_up(ids.long()).to(self._device, self._dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes
