"""A delta net with a decay for each channel by kernels that are generated for this computer's CPU."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.generated.delta_net import delta_heads
from potluck.engine.kernels.called.delta import delta_net
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.layers.attention import Step
from potluck.engine.layers.channel_delta import ChannelDeltaNet, ChannelTensors
from potluck.engine.layers.linear import Linear
from potluck.model.mixing.channel_delta import ChannelDeltaSpec


class GeneratedChannelDeltaNet(ChannelDeltaNet):
    """The mixer with hidden states of any dtype; what is between its products is f32."""

    __slots__ = ("_kernels", "_shape")

    def __init__(
        self,
        spec: ChannelDeltaSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        gates: Linear,
        tensors: ChannelTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        kernels: GeneratedKernels,
    ) -> None:
        product = kernels.multiply_plain
        super().__init__(spec, input, gates, tensors, output, dtype=dtype, product=product)
        self._kernels, self._shape = kernels, delta_heads(spec)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, StateCache)
        state = cache.state(step.position)
        mixed = delta_net(self._kernels, self._shape, rows, self.tensors, *state)
        return mixed.to(self._dtype)
