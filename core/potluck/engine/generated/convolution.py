"""A short convolution by a kernel that is generated for this computer's CPU."""

from dataclasses import fields

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.kernels.called.convolution import short_convolution
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.products.tensors import ConvolutionTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.short_convolution import ShortConvolution
from potluck.model.mixing.short_convolution import ConvolutionSizes, ConvolutionSpec


class GeneratedConvolution(ShortConvolution):
    """The mixer with hidden states of any dtype; what is between its products is f32."""

    __slots__ = ("_kernels", "_sizes")

    def __init__(
        self,
        spec: ConvolutionSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        tensors: ConvolutionTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        kernels: GeneratedKernels,
    ) -> None:
        super().__init__(spec, input, tensors, output, dtype=dtype)
        self._kernels, self._sizes = kernels, convolution_sizes(spec)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, StateCache)
        state = cache.state(step.position)
        mixed = short_convolution(self._kernels, self._sizes, rows, self.tensors, *state)
        return mixed.to(self._dtype)


def convolution_sizes(spec: ConvolutionSpec) -> ConvolutionSizes:
    """The parameters of the kernel."""
    names = (field.name for field in fields(ConvolutionSizes))
    return ConvolutionSizes(**{name: getattr(spec, name) for name in names})
