"""The matrices of latent attention that absorb queries and make values, filled from what the files have of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from potluck.engine.kernels import Kernels
from potluck.engine.layers.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.loading.filling import Filling
from potluck.engine.loading.targets import PackedTarget, Target, TensorTarget
from potluck.model.mixing.latent import EXPANSION, LatentSpec

Make = Callable[[int, int], FloatLinear | PackedLinear]
"""Make a matrix (rows, width) that is not filled yet."""


def make_ups(
    spec: LatentSpec,
    prefix: str,
    *,
    make: Make,
    filling: Filling,
    dtype: torch.dtype,
    kernels: Kernels | None,
) -> tuple[Linear, Linear]:
    """(H·rank, plain_dim) and (H·value_dim, rank): see `LatentAttention`.

    Args:
        spec: of the attention.
        prefix: of the layer's tensors.
        make: makes the matrices.
        filling: of the layer.
        dtype: in which they are held until they are in order.
        kernels: that pack; None: no matrix is packed.
    """
    key_up, value_up = ups = [make(up.rows[0], up.width) for up in spec.ups]
    if spec.is_ordered:
        for up, linear in zip(spec.ups, ups, strict=True):
            filling.add(f"{prefix}{up.parts[0]}.weight", _target(linear, kernels))
        return key_up, value_up
    sizes = (spec.plain_dim, spec.value_dim)
    whole = torch.empty((spec.heads, sum(sizes), spec.rank), dtype=dtype)
    filling.tensor(f"{prefix}{EXPANSION}.weight", whole.view(-1, spec.rank))

    def order() -> None:
        keys, values = whole.split(sizes, 1)
        _target(key_up, kernels).fill(0, _matrix(keys.transpose(1, 2)))
        _target(value_up, kernels).fill(0, _matrix(values))

    filling.then(order)
    return key_up, value_up


def _target(linear: FloatLinear | PackedLinear, kernels: Kernels | None) -> Target:
    match linear:
        case FloatLinear(weight=weight):
            return TensorTarget(weight)
        case PackedLinear(weight=weight):
            assert kernels is not None
            return PackedTarget(weight, 0, weight.rows, kernels)


def _matrix(parts: Tensor) -> Tensor:
    """(H, n, width) → (H·n, width)."""
    return parts.reshape(-1, parts.shape[-1])
