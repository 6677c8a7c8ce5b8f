"""The kernel of a short convolution computes what torch does, with the same bits however tokens are cut."""

import pytest
import torch
from kernel_paths import every_generated
from torch import Tensor

from potluck.engine.caches.state_cache import StateCache
from potluck.engine.generated.convolution import convolution_sizes
from potluck.engine.kernels.called.convolution import short_convolution
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.products.tensors import ConvolutionTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.short_convolution import ShortConvolution
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.mixing.short_convolution import ConvolutionSpec

CPU, TOKENS = torch.device("cpu"), 30


def new_state(spec: ConvolutionSpec) -> StateCache:
    cache = spec.cache(CacheSizes(number_bytes=4))
    assert isinstance(cache, RecurrentCache)
    made = StateCache(cache, CPU)
    made.resize(1, 0)
    return made


@every_generated
@pytest.mark.parametrize(("size", "inputs"), [(5, 2), (70, 3), (144, 4)])
def test_the_kernel_computes_what_torch_does_however_tokens_are_cut(
    kernels: GeneratedKernels, size: int, inputs: int
) -> None:
    torch.manual_seed(size)
    spec = ConvolutionSpec(size=size, inputs=inputs, has_bias=inputs != 3)
    bias = torch.randn(size) if spec.has_bias else None
    tensors = ConvolutionTensors(torch.randn(inputs, size), bias)
    rows, cache = torch.randn(TOKENS, spec.rows), new_state(spec)
    nothing = FloatLinear(torch.empty(0, 0), None, torch.nn.functional.linear)
    mixer = ShortConvolution(spec, nothing, tensors, nothing, dtype=torch.float32)

    def computed(sizes: list[int]) -> tuple[Tensor, Tensor]:
        before, state = (part.clone() for part in new_state(spec).state(0))
        parts = [
            short_convolution(kernels, convolution_sizes(spec), some, tensors, before, state)
            for some in rows.split(sizes)
        ]
        return torch.cat(parts), before

    out, before = computed([TOKENS])
    cut, before_of_cut = computed([1, 1, 20, 7, 1])

    expected = mixer.mix(rows, cache, Step(0, TOKENS, (), CPU))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(before, cache.state(TOKENS)[0])
    assert torch.equal(out, cut)
    assert torch.equal(before, before_of_cut)
