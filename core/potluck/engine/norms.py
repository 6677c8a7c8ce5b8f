"""Root mean square norms (https://arxiv.org/abs/1910.07467), computed in f32.

Their weights are f32 too: 16 bits of a norm save nothing and cost a conversion. What a family does to
the weights (adding one) is done once they are loaded.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class RmsNorm:
    """Of hidden states, (T, D)."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.shape = tuple(weight.shape[-1:])
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        # Not `F.rms_norm`, which asks first whether anybody overrides it.
        if x.dtype == torch.float32:
            return torch.rms_norm(x, self.shape, self.weight, self.eps)
        return torch.rms_norm(x.float(), self.shape, self.weight, self.eps).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class QkNorm(Protocol):
    """A norm of queries and keys, (T, H + Hkv, K), both in one call; gives f32."""

    def __call__(self, x: Tensor) -> Tensor: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...


class HeadNorm:
    """Over each head by itself."""

    __slots__ = ("_eps", "_heads", "_per_head", "_shape", "weight")

    def __init__(self, weight: Tensor, heads: tuple[int, int], eps: float) -> None:
        self.weight = weight  # (2, K): of the queries, of the keys
        self._shape = tuple(weight.shape[-1:])
        self._heads, self._eps = heads, eps
        self._per_head = weight.new_empty((sum(heads), weight.shape[-1]))

    def spread(self) -> None:
        """Give each head its weights; to be called once they are loaded."""
        rows = zip(self.weight, self._heads, strict=True)
        self._per_head = torch.cat([row.expand(heads, -1) for row, heads in rows])  # (H + Hkv, K)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self._shape, None, self._eps).mul_(self._per_head)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class ProjectionNorm:
    """Over all heads together, those of queries and those of keys."""

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
