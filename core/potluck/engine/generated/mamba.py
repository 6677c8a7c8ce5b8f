"""A state space layer by kernels that are generated for this computer's CPU."""

from dataclasses import fields

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.called.mamba import mamba
from potluck.engine.kernels.products.tensors import MambaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mamba import Mamba
from potluck.model.mixing.mamba import MambaHeads, MambaSpec


class GeneratedMamba(Mamba):
    """The mixer with hidden states of any dtype; what is between its products is f32."""

    __slots__ = ("_heads", "_kernels")

    def __init__(
        self,
        spec: MambaSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        tensors: MambaTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        kernels: GeneratedKernels,
    ) -> None:
        super().__init__(spec, input, tensors, output, dtype=dtype)
        self._kernels, self._heads = kernels, mamba_heads(spec)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, StateCache)
        state = cache.state(step.position)
        return mamba(self._kernels, self._heads, rows, self.tensors, *state).to(self._dtype)


def mamba_heads(spec: MambaSpec) -> MambaHeads:
    """The parameters of the kernels."""
    return MambaHeads(**{field.name: getattr(spec, field.name) for field in fields(MambaHeads)})
