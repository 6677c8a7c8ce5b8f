"""A short convolution of one session (LFM2)."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.kernels.products.tensors import ConvolutionTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.recurrent import RecurrentMixer, convolved
from potluck.model.mixing.short_convolution import ConvolutionSpec


def empty_tensors(
    spec: ConvolutionSpec, device: torch.device
) -> tuple[ConvolutionTensors, dict[str, Tensor]]:
    """Allocate the small tensors.

    Returns:
        The tensors, and by the name in files the memory to fill. Call `finish_convolution` after that.
    """
    tensors = ConvolutionTensors(
        convolution=torch.empty((spec.channels, 1, spec.inputs), device=device),
        bias=torch.empty(spec.channels, device=device) if spec.has_bias else None,
    )
    small = (one for one in (tensors.convolution, tensors.bias) if one is not None)
    return tensors, dict(zip(spec.small_tensors, small, strict=True))


class ShortConvolution(RecurrentMixer[ConvolutionSpec, ConvolutionTensors]):
    """The mixer in torch."""

    __slots__ = ()

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → B, C and x, (T, 3 D), f32."""
        return self.input(x).float()

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, D). The cache gets the last inputs of the convolution."""
        assert isinstance(cache, StateCache)
        before, _ = cache.state(step.position)
        b, c, x = rows.chunk(3, 1)
        mixed = convolved(b * x, before, self.tensors.convolution, self.tensors.bias)
        return mixed.mul_(c).to(self._dtype)
