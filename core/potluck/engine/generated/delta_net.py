"""A gated delta net by kernels that are generated for this computer's CPU."""

from dataclasses import fields

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.kernels.called.delta import delta_net
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.products.tensors import DeltaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.delta_net import STATE, DeltaNet
from potluck.engine.layers.linear import Linear
from potluck.model.mixing.delta_net import DeltaHeads, DeltaNetSpec


class GeneratedDeltaNet(DeltaNet):
    """The mixer with hidden states of any dtype; what is between its products is f32."""

    __slots__ = ("_heads", "_kernels")

    def __init__(
        self,
        spec: DeltaNetSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        tensors: DeltaTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        kernels: GeneratedKernels,
    ) -> None:
        super().__init__(spec, input, tensors, output, dtype=dtype, product=kernels.multiply_plain)
        self._kernels, self._heads = kernels, delta_heads(spec)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, StateCache)
        state = cache.state(step.position, STATE)
        return delta_net(self._kernels, self._heads, rows, self.tensors, *state).to(self._dtype)


def delta_heads(spec: DeltaHeads) -> DeltaHeads:
    """The parameters of the kernels."""
    return DeltaHeads(**{field.name: getattr(spec, field.name) for field in fields(DeltaHeads)})
