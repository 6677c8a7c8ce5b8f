"""Root mean square norms (https://arxiv.org/abs/1910.07467), computed in f32.

Their weights are f32 too: 16 bits would save little memory and cost a conversion. If a family
multiplies by 1 + weight, the one is added when the weights are loaded.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import Kernels


class RmsNorm:
    """The norm of hidden states, (T, D)."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.shape = tuple(weight.shape[-1:])
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        # `F.rms_norm` does the same, but first checks for overrides, which takes time.
        if x.dtype == torch.float32:
            return torch.rms_norm(x, self.shape, self.weight, self.eps)
        return torch.rms_norm(x.float(), self.shape, self.weight, self.eps).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class KernelNorm(RmsNorm):
    """`RmsNorm` of f32 by kernels, which add in the same order on every computer."""

    __slots__ = ("_kernels",)

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels) -> None:
        super().__init__(weight, eps)
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        return self._kernels.norm(x, self.weight, self.eps)


class QkNorm(Protocol):
    """The norm of queries and keys, (T, H + Hkv, K), both in one call. The result is f32."""

    def __call__(self, x: Tensor) -> Tensor: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...


class HeadNorm:
    """A norm over each head."""

    __slots__ = ("_eps", "_heads", "_per_head", "_shape", "weight")

    def __init__(self, weight: Tensor, heads: tuple[int, int], eps: float) -> None:
        self.weight = weight  # (2, K): for queries, then for keys
        self._shape = tuple(weight.shape[-1:])
        self._heads, self._eps = heads, eps
        self._per_head = weight.new_empty((sum(heads), weight.shape[-1]))

    def spread(self) -> None:
        """Copy the weights to each head. Call it when they are loaded."""
        rows = zip(self.weight, self._heads, strict=True)
        self._per_head = torch.cat([row.expand(heads, -1) for row, heads in rows])  # (H + Hkv, K)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self._shape, None, self._eps).mul_(self._per_head)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class ProjectionNorm:
    """One norm over all heads of queries together, and one over all heads of keys."""

    __slots__ = ("_eps", "_sizes", "weight")

    def __init__(self, weight: Tensor, sizes: Sequence[int], eps: float) -> None:
        self.weight = weight  # (H·K + Hkv·K,)
        self._sizes, self._eps = list(sizes), eps

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.float().flatten(1).split(self._sizes, -1)
        weights = self.weight.split(self._sizes)
        normed = [
            F.rms_norm(part, tuple(weight.shape), weight, self._eps)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return torch.cat(normed, -1).view(x.shape)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes
