"""Root mean square norms (https://arxiv.org/abs/1910.07467), and layer norms, computed in f32.

Their weights are f32 too: 16 bits would save little memory and cost a conversion. If a family
multiplies by 1 + weight, the one is added when the weights are loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.kernels import Kernels
from potluck.model.families.facts import NormKind

Norm = Callable[[Tensor, Sequence[int], Tensor | None, float], Tensor]
"""The norm of a tensor over a last axis of this shape: with f32 weights or none, and epsilon. It is computed in f32, and
given in the dtype of the tensor."""


def torch_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    """The norm by torch's operator."""
    if x.dtype == torch.float32:
        return torch.rms_norm(x, shape, weight, eps)
    return torch.rms_norm(x.float(), shape, weight, eps).to(x.dtype)


def plain_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    """The same from squares, their mean and a quotient, which every device has."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(x.dtype)


class _Weighted:
    """A norm with its weights."""

    __slots__ = ("weight",)

    weight: Tensor

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class RmsNorm(_Weighted):
    """The norm of hidden states, (T, D)."""

    __slots__ = ("_norm", "eps", "shape")

    kind: NormKind = "root mean square"

    # `F.rms_norm` is the same as `torch.rms_norm`, but first checks for overrides, which takes time.
    def __init__(self, weight: Tensor, eps: float, norm: Norm = torch_norm) -> None:
        self.weight = weight
        self.shape = tuple(weight.shape[-1:])
        self.eps, self._norm = eps, norm

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x, self.shape, self.weight, self.eps)


class LayerNorm(RmsNorm):
    """The norm of what hidden states, (T, D), are beside their mean (https://arxiv.org/abs/1607.06450), without a bias."""

    __slots__ = ()

    kind = "layer"

    def __call__(self, x: Tensor) -> Tensor:
        centred = x.float() - x.float().mean(-1, keepdim=True)
        return self._norm(centred, self.shape, self.weight, self.eps).to(x.dtype)


class KernelNorm(RmsNorm):
    """`RmsNorm` or `LayerNorm` by kernels, which add in the same order on every computer."""

    __slots__ = ("_kernels", "kind")

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels, kind: NormKind) -> None:
        super().__init__(weight, eps)
        self._kernels, self.kind = kernels, kind

    def __call__(self, x: Tensor) -> Tensor:
        return self._kernels.norm(x.float(), self.weight, self.eps, self.kind).to(x.dtype)


class BiasedLayerNorm(LayerNorm):
    """The same with a bias: its weights are (2, n), of which the second row is added."""

    __slots__ = ()

    kind = "biased layer"

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        normed = self._norm(centred, self.shape, self.weight[0], self.eps)
        return (normed + self.weight[1]).to(x.dtype)


class QkNorm(_Weighted, ABC):
    """The norm of queries and keys, (T, H + Hkv, K), both in one call, or of values too. The result is f32."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


class HeadNorm(QkNorm):
    """A norm over each head."""

    __slots__ = ("_heads", "_norm", "_shape", "eps", "per_head")

    def __init__(
        self, weight: Tensor, heads: Sequence[int], eps: float, norm: Norm = torch_norm
    ) -> None:
        self.weight = weight  # (2 or 3, K): for queries, for keys, for values
        self._shape = tuple(weight.shape[-1:])
        self._heads, self.eps, self._norm = tuple(heads), eps, norm
        self.per_head = weight.new_empty((sum(heads), weight.shape[-1]))  # see `spread`

    @property
    def nbytes(self) -> int:
        return self.weight[:2].nbytes  # those of values are ones, which no file has

    def spread(self) -> None:
        """Copy the weights to each head. Call it when they are loaded."""
        rows = zip(self.weight, self._heads, strict=True)
        self.per_head = torch.cat(
            [row.expand(heads, -1) for row, heads in rows]
        )  # (H + Hkv or more, K)

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x.float(), self._shape, None, self.eps).mul_(self.per_head)


class ProjectionNorm(QkNorm):
    """One norm over all heads of queries together, and one over all heads of keys."""

    __slots__ = ("_eps", "_norm", "_sizes")

    def __init__(
        self, weight: Tensor, sizes: Sequence[int], eps: float, norm: Norm = torch_norm
    ) -> None:
        self.weight = weight  # (H·K + Hkv·K,)
        self._sizes, self._eps, self._norm = list(sizes), eps, norm

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.float().flatten(1).split(self._sizes, -1)
        weights = self.weight.split(self._sizes)
        normed = [
            self._norm(part, tuple(weight.shape), weight, self._eps)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return torch.cat(normed, -1).view(x.shape)
